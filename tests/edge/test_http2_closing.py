"""How the HTTP/2 carrier closes, and what a client that does not read can do to it."""

import contextlib
from concurrent.futures import Future

import pytest
from h2.errors import ErrorCodes
from http2_peer import (
    LOOPS,
    PREFACE,
    Peer,
    Serving,
    Wire,
    data,
    eventually,
    headers,
    message,
    messages,
    pattern,
    sends,
    served,
)
from hyperframe.frame import GoAwayFrame, RstStreamFrame, SettingsFrame

from sidecar.edge import http2_server
from sidecar.edge.http2_server import UNWRITTEN_BYTES

MIB = 1 << 20

serving = pytest.fixture(params=LOOPS)(served)


def closing(serving: Serving, grace_s: float) -> "Future[None]":
    future: Future[None] = serving.start(serving.server.close(grace_s))
    return future


def test_close_waits_for_what_runs(serving: Serving) -> None:
    """GOAWAY names the last call, which finishes; a later one is refused, unprocessed; then the
    connection ends, and so does `close`. One without calls ends at once."""
    with Wire(serving.path) as wire, Wire(serving.path) as idle:
        idle.send(PREFACE + SettingsFrame(0).serialize())
        wire.send(PREFACE + SettingsFrame(0).serialize() + headers(5) + headers(7))
        eventually(lambda: len(serving.calls) == 2)
        done = closing(serving, 30)
        assert wire.until(GoAwayFrame).last_stream_id == 7
        assert isinstance(idle.rest()[-1], GoAwayFrame)
        wire.send(headers(9) + data(9, message(b"late")))
        assert wire.until(RstStreamFrame).error_code == ErrorCodes.REFUSED_STREAM
        wire.send(data(7, message(b"end")))
        wire.until(RstStreamFrame, stream_id=7, error_code=ErrorCodes.NO_ERROR)
        assert not done.done()
        wire.send(data(5, message(b"end")))
        assert isinstance(wire.rest()[-1], RstStreamFrame)
        assert done.result(5) is None
    assert [heard.messages for heard in serving.calls] == [[b"end"], [b"end"]]


def test_after_the_grace_the_rest_is_closed(serving: Serving) -> None:
    """Each running call hears it once."""
    with Peer(serving.path) as peer:
        for _ in range(5):
            peer.open()
        eventually(lambda: len(serving.calls) == 5)
        closing(serving, 0.05).result(5)
        assert [heard.closed for heard in serving.calls] == [1] * 5
        peer.until_gone()
    assert serving.held() == (0, 0, 0)


def test_a_client_that_does_not_read_cannot_hold_up_the_close(serving: Serving) -> None:
    """Its calls are told, and the connection is cut."""
    serving.react = lambda heard, _data: heard.call.send(pattern(8 * MIB))
    with Peer(serving.path, initial_window_size=16 * MIB) as peer:
        peer.h2.increment_flow_control_window(16 * MIB)
        peer.ask(b"x")
        eventually(lambda: serving.calls and serving.calls[0].messages)
        closing(serving, 0.05).result(5)
        eventually(lambda: serving.held() == (0, 0, 0), 2)
        assert serving.calls[0].closed == 1


def test_a_client_that_breaks_the_protocol_and_does_not_read(serving: Serving) -> None:
    """Its calls are told at once, though what was written to it cannot go."""
    serving.react = lambda heard, _data: heard.call.send(pattern(8 * MIB))
    with Peer(serving.path, initial_window_size=16 * MIB) as peer:
        peer.h2.increment_flow_control_window(16 * MIB)
        peer.ask(b"x")
        eventually(lambda: serving.calls and serving.calls[0].messages)
        peer.socket.sendall(headers(2))
        eventually(lambda: serving.calls[0].closed)
        assert serving.held() == (1, 0, 0)
    eventually(lambda: serving.held() == (0, 0, 0))
    assert serving.calls[0].closed == 1


def test_a_client_that_does_not_read_is_not_answered_into_memory(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its PINGs stay in the socket, once as much as we keep is unwritten."""
    monkeypatch.setattr(http2_server, "UNWRITTEN_BYTES", MIB)
    with Peer(serving.path) as peer:
        peer.socket.settimeout(0.5)
        ping = bytes.fromhex("000008060000000000") + b"12345678"
        sent = 0
        with contextlib.suppress(TimeoutError):
            while sent < 4 * MIB:
                sent += peer.socket.send(ping * 10_000)
        assert sent < 3 * MIB


def test_a_client_that_reads_late_gets_all(serving: Serving) -> None:
    """What waited for it goes on."""
    data = pattern(UNWRITTEN_BYTES + 10 * MIB)
    serving.react = sends(data)
    with Peer(serving.path, initial_window_size=64 * MIB) as peer:
        peer.h2.increment_flow_control_window(64 * MIB)
        stream = peer.ask(b"x")
        eventually(lambda: serving.calls and serving.calls[0].messages)
        other = peer.ask(b"y")
        assert peer.over(stream).is_good
        assert peer.over(other).is_good
    assert messages(peer.replies[stream].data) == [data]
