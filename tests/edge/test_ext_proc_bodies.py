"""Bodies through a real Envoy and either carrier, there and back: byte for byte, whatever their
size, however they are sent."""

import hashlib
import http.client
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from envoy_edge import Edge, eventually

from sidecar.app.ext_proc_server import carrier
from sidecar.wire import ext_proc
from sidecar.wire.calls import Call
from tests.requests.transport_h2 import H2Client

MIB = 1 << 20
SIZES = [
    1, 16_370, 16_371, 16_384, 61_999, 62_000, 62_001, 65_535, 65_536, 65_537, MIB, 4 * MIB,
]  # fmt: skip
CHUNK = 10_007
MANY = 60


class Turner:
    """`calls.Handler`: an exchange that turns the body around, or leaves it as it came."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._headers: dict[str, str] = {}

    def on_message(self, data: bytes) -> None:
        message = ext_proc.decode(data)
        if isinstance(message, ext_proc.RequestHeaders):
            self._headers = message.headers
            self._call.send(*ext_proc.encode(ext_proc.HeadersReply()))
            return
        assert isinstance(message, ext_proc.RequestBody)
        turned = message.body[::-1] if self._headers["x-test-way"] == "turned" else None
        to = {ext_proc.DESTINATION: self._headers["x-test-to"]}
        self._call.send(*ext_proc.encode(ext_proc.BodyReply(body=turned, set_headers=to)))
        self._call.end()

    def on_closed(self) -> None: ...


class CarriedEdge(Edge):
    """Its worker is one of our carriers."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self._kind = kind

    async def start_worker(self) -> None:
        self._carrier = carrier(self._kind, Turner)  # here, where a loop runs
        await self._carrier.listen(Path(self.settings.worker_sockets[0]))

    async def stop_worker(self) -> None:
        await self._carrier.close(0)


@pytest.fixture(scope="module", params=["http2", "grpcio"])
def carried(request: pytest.FixtureRequest) -> Iterator[Edge]:
    edge = CarriedEdge(request.param)
    try:
        edge.start()
        yield edge
    finally:
        edge.stop()


def body_of(size: int, salt: int = 0) -> bytes:
    """Bytes of which none that is lost, doubled or moved goes unseen; no two bodies are alike."""
    blocks = (hashlib.sha256(b"%d %d" % (salt, n)).digest() for n in range(size // 32 + 1))
    return b"".join(blocks)[:size]


Sender = Callable[[Edge, bytes, dict[str, str]], int]
"""Sends a request and returns the answer's status."""


def with_length(edge: Edge, body: bytes, headers: dict[str, str]) -> int:
    return _http1(edge, body, headers, is_chunked=False)


def chunked(edge: Edge, body: bytes, headers: dict[str, str]) -> int:
    return _http1(edge, body, headers, is_chunked=True)


def _http1(edge: Edge, body: bytes, headers: dict[str, str], *, is_chunked: bool) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", edge.settings.listen_port, timeout=20)
    try:
        parts = (body[at : at + CHUNK] for at in range(0, len(body), CHUNK))
        connection.request(
            "POST",
            "/v1/completions",
            parts if is_chunked else body,
            headers,
            encode_chunked=is_chunked,
        )
        answer = connection.getresponse()
        answer.read()
        return answer.status
    finally:
        connection.close()


def over_http2(edge: Edge, body: bytes, headers: dict[str, str]) -> int:
    with H2Client(f"http://127.0.0.1:{edge.settings.listen_port}") as client:
        return client.answer(client.post("/v1/completions", body, *headers.items())).status


def headers_of(edge: Edge, way: str, number: int = 0) -> dict[str, str]:
    return {"x-test-to": edge.engine.address, "x-test-way": way, "x-test-number": str(number)}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("way", ["turned", "as it came"])
@pytest.mark.parametrize("send", [with_length, chunked, over_http2])
def test_bodies_arrive_byte_for_byte(carried: Edge, send: Sender, way: str, size: int) -> None:
    """The engine gets what the exchange made of what the client sent, and its length."""
    carried.engine.requests.clear()
    body = body_of(size)
    assert send(carried, body, headers_of(carried, way)) == 200
    ((_, headers, got),) = carried.engine.requests
    assert got == (body[::-1] if way == "turned" else body)
    if way == "turned":
        assert headers["content-length"] == str(size)


def test_a_body_at_the_limit(carried: Edge) -> None:
    """The largest that is taken by default, there and back in one message each."""
    carried.engine.requests.clear()
    size = carried.settings.max_body_bytes
    body = body_of(size - 4 * MIB) + bytes(4 * MIB)
    assert with_length(carried, body, headers_of(carried, "turned")) == 200
    ((_, _, got),) = carried.engine.requests
    assert got == body[::-1]


def test_many_at_once(carried: Edge) -> None:
    """Of all sizes, by all clients: none gets what is of another."""
    carried.engine.requests.clear()
    senders: list[Sender] = [with_length, chunked, over_http2]

    def one(number: int) -> int:
        body = body_of(SIZES[number % (len(SIZES) - 1)], number)
        return senders[number % 3](carried, body, headers_of(carried, "turned", number))

    with ThreadPoolExecutor(16) as pool:
        assert set(pool.map(one, range(MANY))) == {200}
    got = {int(headers["x-test-number"]): body for _, headers, body in carried.engine.requests}
    assert len(got) == MANY
    for number, body in got.items():
        assert body == body_of(SIZES[number % (len(SIZES) - 1)], number)[::-1], number


def test_envoy_finds_no_fault_with_the_carrier(carried: Edge) -> None:
    """No protocol error, no reset that it did not expect, no stream that stays open."""
    assert with_length(carried, body_of(MIB), headers_of(carried, "turned")) == 200
    eventually(lambda: carried.stat("cluster.workers.upstream_rq_active") == 0, "none is open")
    for name in (
        "cluster.workers.upstream_cx_protocol_error",
        "cluster.workers.upstream_rq_rx_reset",
        "cluster.workers.http2.rx_messaging_error",
        "cluster.workers.http2.tx_flush_timeout",
        "cluster.workers.http2.streams_active",
    ):
        assert carried.stat(name) == 0, name
