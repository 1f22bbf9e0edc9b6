"""HTTP/1.0 clients, and the two profiling routes that lead past the sidecar's workers."""

import json
from collections.abc import Iterator

import pytest
from edge_client import ask, raw_until_closed
from envoy_edge import Edge, Engine, eventually

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def admin(shared_edge: Edge) -> Iterator[Engine]:
    """Stands for the control process's admin."""
    engine = Engine()
    shared_edge.run(engine.start())
    yield engine
    shared_edge.run(engine.stop())


def to(edge: Edge) -> bytes:
    return b"x-test-to: " + edge.engine.address.encode() + b"\r\n"


@pytest.mark.parametrize("host", [b"", b"Host: a\r\n"])
def test_http_10_is_served_with_a_host_or_without(edge: Edge, host: bytes) -> None:
    """And closed when answered, as such a client expects that did not ask otherwise."""
    head, body = raw_until_closed(edge, b"GET /health HTTP/1.0\r\n" + host + to(edge) + b"\r\n")
    assert head.startswith(b"HTTP/1.")
    assert head.split()[1] == b"200"
    assert json.loads(body) == {"bytes": 0}
    assert edge.seen[0][":authority"] == ("a" if host else "pd-sidecar")


def test_http_10_keeps_its_connection_when_it_asks(edge: Edge) -> None:
    """`ab -k` and old proxies."""
    once = b"GET /health HTTP/1.0\r\n" + to(edge)
    keep = b"Connection: keep-alive\r\n\r\n"
    head, body = raw_until_closed(edge, once + keep + once + b"\r\n")
    assert b"connection: keep-alive" in head.lower()
    assert body.count(b"HTTP/1.") == 1, "a second answer on the same connection"


def test_an_http_10_client_gets_a_streamed_answer_ended_by_the_close(edge: Edge) -> None:
    """It knows no chunks, so there are none."""
    request = b"POST /v1/completions HTTP/1.0\r\nContent-Length: 2\r\n" + to(edge)
    head, body = raw_until_closed(
        edge, request + b"x-test-engine: chunks\r\nx-test-stream: 1\r\n\r\n{}"
    )
    assert head.split()[1] == b"200"
    assert b"transfer-encoding" not in head.lower()
    assert body == b"012"


def test_http_10_errors_have_the_same_shape(edge: Edge) -> None:
    """A path that does not exist."""
    head, body = raw_until_closed(edge, b"GET /nothing HTTP/1.0\r\n\r\n")
    assert head.split()[1] == b"404"
    assert json.loads(body)["error"]["code"] == "not_found"


@pytest.mark.parametrize("path", ["/start_profile", "/stop_profile"])
def test_profiling_leads_to_the_control_process_only_when_it_is_on(
    edge: Edge, admin: Engine, path: str
) -> None:
    """Off, the path does not exist (404, not 405); on, it is POST and asks no worker."""
    host, _, port = admin.address.partition(":")
    assert ask(edge, "POST", path).status == 404
    changes = {"profile_host": host, "profile_port": int(port), "profile_routes": True}
    edge.publish([edge.engine.address], **changes)
    try:
        eventually(lambda: ask(edge, "GET", path).status == 405, "the routes are there")
        eventually(lambda: edge.stat("cluster_manager.warming_clusters") == 0, "nothing warms")
        admin.requests.clear()
        answer = ask(edge, "POST", path, b'{"a": 1}')
        assert (answer.status, json.loads(answer.body)) == (200, {"bytes": 8})
        assert [(got, body) for got, _, body in admin.requests] == [(path, b'{"a": 1}')]
        wrong = ask(edge, "GET", path)
        assert (wrong.headers["allow"], wrong.reason) == ("POST", "method_not_allowed")
        assert edge.seen == []
        assert edge.engine.requests == []
    finally:
        edge.publish([edge.engine.address])
        eventually(lambda: ask(edge, "POST", path).status == 404, "the routes are gone")


def test_profiling_while_the_control_process_is_away_is_a_clear_503(edge: Edge) -> None:
    """Never a hang."""
    changes = {"profile_host": "127.0.0.1", "profile_port": 9, "profile_routes": True}
    edge.publish([edge.engine.address], **changes)
    try:
        eventually(lambda: ask(edge, "GET", "/stop_profile").status == 405, "the routes are there")
        answer = ask(edge, "POST", "/stop_profile")
        # As of an engine that does not listen: Envoy does not tell whose port it is.
        assert (answer.status, answer.reason) == (503, "decode_refused")
        assert answer.headers["retry-after"] == "1"
    finally:
        edge.publish([edge.engine.address])
        eventually(lambda: ask(edge, "GET", "/stop_profile").status == 404, "the routes are gone")
