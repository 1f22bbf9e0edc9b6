"""What Envoy tells of failed attempts at an engine, read as evidence: each failure once, of the
host that failed."""

import http.client
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import pytest
from envoy.service.accesslog.v3 import als_pb2
from envoy_edge import Edge, eventually

from sidecar.app.evidence import of_log
from sidecar.routing.standing import Evidence, Failure
from sidecar.wire import access_log
from tests.ports import free_port

pytestmark = pytest.mark.e2e

HEADERS_LIMIT_S, WHOLE_LIMIT_S, CONNECT_LIMIT_S = 0.4, 0.7, 0.5
NOW = 100.0
REFUSES = f"127.0.0.1:{free_port()}"
HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.fixture(scope="module")
def edge() -> Iterator[Edge]:
    edge = Edge(
        decode_headers_timeout_s=HEADERS_LIMIT_S,
        decode_idle_timeout_s=HEADERS_LIMIT_S,
        decode_whole_timeout_s=WHOLE_LIMIT_S,
        upstream_connect_timeout_s=CONNECT_LIMIT_S,
        access_log_buffer_interval_ms=50,
    )
    try:
        edge.start()
        yield edge
    finally:
        edge.stop()


class Rude:
    """An engine that reads the request and then does what `act` does to the connection."""

    def __init__(self, act: Callable[[socket.socket], None]) -> None:
        self._act = act
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(65536)
                self._act(connection)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def abort(connection: socket.socket) -> None:
    """A reset in place of a clean end."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def until_closed(connection: socket.socket) -> None:
    while connection.recv(65536):
        pass


def told_of(edge: Edge, to: str, **headers: str) -> list[Evidence]:
    """What one request to `to` is evidence of."""
    pool = [edge.engine.address, REFUSES, *to.split(",")]
    edge.publish(pool)
    eventually(lambda: edge.serves(sorted(set(pool))), "the pool")
    edge.entries.clear()
    ask(edge, to, **headers)
    return evidence(edge)


def evidence(edge: Edge) -> list[Evidence]:
    """All that has come of what was asked before. A last request is refused, so that it is in both
    logs: they keep their order, so nothing is on its way any more when that one is there."""
    assert ask(edge, REFUSES, x_test_ex="last") == 503
    edge.end_of("last")
    eventually(lambda: any(one.where == REFUSES for one in read(edge)), "the last attempt")
    return [one for one in read(edge) if one.where != REFUSES]


def read(edge: Edge) -> list[Evidence]:
    return [told for log in decoded(edge) if (told := of_log(log, NOW)) is not None]


def decoded(edge: Edge) -> list[access_log.Entry | access_log.Attempt]:
    message = als_pb2.StreamAccessLogsMessage()
    message.http_logs.log_entry.extend(edge.entries)
    return access_log.decode(message.SerializeToString())


def ask(edge: Edge, to: str, **headers: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", edge.settings.listen_port, timeout=10)
    shown = {"x-test-to": to} | {k.replace("_", "-"): v for k, v in headers.items()}
    try:
        connection.request("POST", "/v1/completions", b'{"a":1}', shown)
        answer = connection.getresponse()
        answer.read()
        return answer.status
    except http.client.IncompleteRead:
        return 200
    finally:
        connection.close()


def cut(connection: socket.socket) -> None:
    connection.sendall(HEAD + b"5\r\nhello\r\n")


def reset_in_the_body(connection: socket.socket) -> None:
    cut(connection)
    abort(connection)


@pytest.mark.parametrize(
    "act",
    [abort, lambda _: None, cut, reset_in_the_body, lambda c: c.sendall(b"garbage\r\n\r\n")],
    ids=["reset", "closed", "closed in the body", "reset in the body", "no HTTP"],
)
def test_a_broken_connection_is_one_reset(edge: Edge, act: Callable[[socket.socket], None]) -> None:
    """Before the headers or after them, a clean end where none may be, or what is no HTTP."""
    rude = Rude(act)
    try:
        (told,) = told_of(edge, rude.address)
    finally:
        rude.close()
    assert (told.where, told.failure) == (rude.address, Failure.RESET)


def test_a_refused_connection_is_told_of_the_host_that_refused(edge: Edge) -> None:
    """Once, and with its address, though nothing answered."""
    dead = f"127.0.0.1:{free_port()}"
    (told,) = told_of(edge, dead)
    assert (told.where, told.failure) == (dead, Failure.REFUSED)


def test_a_host_that_no_route_leads_to_is_refused(edge: Edge) -> None:
    """At once and in words: nobody serves there."""
    nowhere = "255.255.255.255:80"
    (told,) = told_of(edge, nowhere)
    assert (told.where, told.failure) == (nowhere, Failure.REFUSED)


def test_a_retried_refusal_is_told_of_both_hosts(edge: Edge) -> None:
    """The request was served: the first host refused all the same, the second one served."""
    dead, good = f"127.0.0.1:{free_port()}", edge.engine.address
    told = told_of(edge, f"{dead},{good}", x_test_retry="1")
    assert {(one.where, one.failure) for one in told} == {(dead, Failure.REFUSED), (good, None)}
    assert len(told) == 2


def test_a_connection_that_nobody_accepts_is_a_timeout(edge: Edge) -> None:
    """The machine is gone, or the backlog is full for a moment: not refused, which one engine after
    another would be thrown out for in a burst."""
    with socket.socket() as full, socket.socket() as first, socket.socket() as second:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for waiting in (first, second):
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        address = f"127.0.0.1:{full.getsockname()[1]}"
        (told,) = told_of(edge, address)
    assert (told.where, told.failure) == (address, Failure.TIMEOUT)
    assert told.placed_at == pytest.approx(NOW - CONNECT_LIMIT_S, abs=0.3)


@pytest.mark.parametrize(
    ("limit_s", "headers"), [(HEADERS_LIMIT_S, {"x_test_stream": "1"}), (WHOLE_LIMIT_S, {})]
)
def test_an_engine_that_hangs_is_one_timeout(
    edge: Edge, limit_s: float, headers: dict[str, str]
) -> None:
    """Streamed and whole (two different clocks of Envoy), dated from when it was sent there."""
    rude = Rude(until_closed)
    try:
        (told,) = told_of(edge, rude.address, **headers)
    finally:
        rude.close()
    assert (told.where, told.failure) == (rude.address, Failure.TIMEOUT)
    assert told.placed_at == pytest.approx(NOW - limit_s, abs=0.3)


def headers_alone(connection: socket.socket) -> None:
    connection.sendall(HEAD)
    until_closed(connection)


def one_token(connection: socket.socket) -> None:
    connection.sendall(HEAD + b"5\r\nhello\r\n")
    until_closed(connection)


@pytest.mark.parametrize(("act", "failures"), [(headers_alone, [Failure.TIMEOUT]), (one_token, [])])
def test_a_stream_that_stops(
    edge: Edge, act: Callable[[socket.socket], None], failures: list[Failure]
) -> None:
    """Headers and no byte: the engine hangs. After a byte it may be the client that does not read,
    and is held against nobody."""
    rude = Rude(act)
    try:
        told = told_of(edge, rude.address, x_test_stream="1")
    finally:
        rude.close()
    assert [one.failure for one in told] == failures


@pytest.mark.parametrize(
    ("status", "expected"), [(200, [None]), (400, [None]), (500, [Failure.ERROR]), (503, [])]
)
def test_answers_of_the_engine_itself(
    edge: Edge, status: int, expected: list[Failure | None]
) -> None:
    """2xx and 4xx speak for it, 5xx against it, 503 (it may be paused) neither."""
    body = json.dumps({"error": "e"}).encode()
    head = f"HTTP/1.1 {status} X\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    rude = Rude(lambda connection: connection.sendall(head + body))
    try:
        told = told_of(edge, rude.address)
    finally:
        rude.close()
    assert [(one.where, one.failure) for one in told] == [(rude.address, f) for f in expected]


def test_a_client_that_leaves_says_nothing_of_the_engine(edge: Edge) -> None:
    """It waited for an engine that works on it."""
    told_of(edge, edge.engine.address)
    edge.entries.clear()
    connection = http.client.HTTPConnection("127.0.0.1", edge.settings.listen_port, timeout=10)
    shown = {"x-test-to": edge.engine.address, "x-test-engine": "hang", "x-test-ex": "left"}
    edge.engine.requests.clear()
    connection.request("POST", "/v1/completions", b'{"a":1}', shown)
    eventually(lambda: edge.engine.requests, "it is at the engine")
    connection.close()
    assert evidence(edge) == []


def test_envoys_own_503_is_nobodys_fault(edge: Edge) -> None:
    """A host that Envoy does not know was never asked."""
    told_of(edge, edge.engine.address)
    edge.entries.clear()
    assert ask(edge, "127.0.0.1:1") == 503
    assert evidence(edge) == []
