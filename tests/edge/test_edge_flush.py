"""Clients that take no byte of an answer that is done."""

import socket

import pytest
from envoy_edge import Edge, eventually
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import StreamReset
from h2.settings import SettingCodes

pytestmark = pytest.mark.e2e

STREAMS = 20


def test_an_http_2_client_without_a_window_is_let_go() -> None:
    """No other clock runs when the engine is done: its streams would stay, each with its memory,
    for as long as the connection does."""
    edge = Edge(flush_timeout_s=1)
    edge.start()
    try:
        where = ("127.0.0.1", edge.settings.listen_port)
        with socket.create_connection(where, timeout=10) as wire:
            connection = H2Connection(H2Configuration())
            connection.initiate_connection()
            connection.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 0})
            for i in range(STREAMS):
                fields = [(":method", "POST"), (":path", "/v1/completions"), (":scheme", "http")]
                fields += [(":authority", "e"), ("content-type", "application/json")]
                fields += [("x-test-to", edge.engine.address)]
                connection.send_headers(2 * i + 1, fields)
                connection.send_data(2 * i + 1, b"{}", end_stream=True)
            wire.sendall(connection.data_to_send())
            resets = 0
            while resets < STREAMS:
                data = wire.recv(65536)
                assert data, "the connection was closed"
                resets += sum(isinstance(e, StreamReset) for e in connection.receive_data(data))
                wire.sendall(connection.data_to_send())
            active = "http.edge.downstream_rq_active"
            eventually(lambda: edge.stat(active) == 0, "nothing is left of them")
    finally:
        edge.stop()
