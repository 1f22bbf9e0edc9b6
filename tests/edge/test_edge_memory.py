"""A crowd of half-sent uploads takes no more of Envoy's memory than it was given."""

import contextlib
import threading
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from edge_client import ask
from envoy_edge import Edge, eventually

from tests.requests.raw_http import Answer, Client, Closed, chunked, request
from tests.requests.transport_h2 import H2Client

# More arrives between two looks at the pressure when Envoy is kept from looking.
pytestmark = [pytest.mark.e2e, pytest.mark.timed]

MIB = 1 << 20
LIMIT_MIB = 128
UPLOADS, EACH_MIB = 30, 24
"""nearly six times the limit"""
SLACK_MIB = 64
"""what arrives within one look at the pressure, and what the allocator keeps for its threads"""
PRESSURE = "overload.envoy.resource_monitors.fixed_heap.pressure"


@pytest.fixture(scope="module")
def edge_settings() -> dict[str, Any]:
    return {"max_heap_bytes": LIMIT_MIB * MIB, "upload_timeout_s": 30}


def url(edge: Edge) -> str:
    return f"http://127.0.0.1:{edge.settings.listen_port}"


class Memory:
    """Envoy's resident memory, watched by a thread of its own while `with` runs."""

    def __init__(self, edge: Edge) -> None:
        assert edge.record is not None
        self._status = Path(f"/proc/{edge.record.pid}/status")
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.before = self.most = self._now()

    def __enter__(self) -> "Memory":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._is_over.wait(0.005):
            self.most = max(self.most, self._now())

    def _now(self) -> int:
        (line,) = [x for x in self._status.read_text().splitlines() if x.startswith("VmRSS")]
        return int(line.split()[1]) // 1024

    @property
    def is_bounded(self) -> bool:
        # The binary itself is in `before`, and does not count against the limit.
        return self.most < self.before + LIMIT_MIB + SLACK_MIB


def to(edge: Edge) -> str:
    return f"x-test-to: {edge.engine.address}"


class Crowd:
    """Uploads that never end, each in a thread; what became of those that were ended."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._upload) for _ in range(UPLOADS)]
        self.ends: list[Answer | None] = []
        """None: the connection broke without an answer"""

    def __enter__(self) -> "Crowd":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _upload(self) -> None:
        piece = chunked(b"x" * 65536)
        with Client.of(url(self._edge)) as client:
            client.send(
                request("POST /v1/completions", to(self._edge), "Transfer-Encoding: chunked")
            )
            try:
                for _ in range(EACH_MIB * 16):
                    client.send(piece)
            except ConnectionError:
                try:
                    self.ends.append(client.answer())
                except Closed:
                    self.ends.append(None)
            else:
                self._is_over.wait(30)


def is_served(edge: Edge) -> bool:
    """False: for want of memory, and said so."""
    answer = ask(edge, "POST", "/v1/completions", b"{}", x_test_to=edge.engine.address)
    if answer.status == 503:
        assert answer.reason == "overloaded"
        assert answer.headers["retry-after"] == "1"
        return False
    assert answer.status == 200
    return True


def test_a_crowd_of_http_1_uploads_is_ended_and_others_are_served(edge: Edge) -> None:
    """503 in our shape, or a closed connection; an answer that is being read goes on."""
    with Client.of(url(edge), 60) as reader, Memory(edge) as memory:
        how = "x-test-engine: slow"
        reader.send(request("POST /v1/completions", to(edge), how, body=b"{}"))
        assert reader.head().first == "HTTP/1.1 200 OK"
        assert reader.chunk() == b"first"
        served = 0
        with Crowd(edge) as crowd:
            # Those that fit stay, silent, until their time is over.
            deadline = monotonic() + 30
            while len(crowd.ends) < UPLOADS - LIMIT_MIB // EACH_MIB:
                assert monotonic() < deadline, f"only {len(crowd.ends)} are ended"
                with contextlib.suppress(ConnectionError):
                    served += is_served(edge)
            edge.let_go()
            assert reader.chunk() == b"last"
            assert reader.chunk() == b""
    assert memory.is_bounded, f"{memory.before} MiB before, {memory.most} at most"
    assert {end.refusal for end in crowd.ends if end is not None} == {(503, "overloaded")}
    assert served
    eventually(lambda: is_served(edge), "the next request is served")


def test_of_http_2_uploads_the_large_are_reset_and_a_small_one_goes_on(edge: Edge) -> None:
    """By size: one that has sent little keeps its place and is served."""
    eventually(lambda: edge.stat(PRESSURE) < 50, "room as before")
    field = ("x-test-to", edge.engine.address)
    resets = []

    def send_much() -> None:
        with H2Client(url(edge)) as client:
            stream = client.open("POST", "/v1/completions", field)
            if not client.send(stream, b"x" * EACH_MIB * MIB, ends=False):
                resets.append(client.answer(stream))
            else:
                is_over.wait(30)

    is_over = threading.Event()
    with H2Client(url(edge)) as small, Memory(edge) as memory:
        half_sent = small.open("POST", "/v1/completions", field)
        small.send(half_sent, b"x" * 100_000, ends=False)
        crowd = [threading.Thread(target=send_much) for _ in range(UPLOADS)]
        for one in crowd:
            one.start()
        # What is left fits below the limit and waits, so the crowd does not end by itself.
        eventually(lambda: len(resets) >= UPLOADS // 2, "the large ones are reset", 20)
        small.send(half_sent, b"x" * 1000)
        assert small.answer(half_sent).body == b'{"bytes": 101000}'
        is_over.set()
        for one in crowd:
            one.join()
    assert memory.is_bounded, f"{memory.before} MiB before, {memory.most} at most"
    assert all(stream.status in (0, 503) for stream in resets)
    eventually(lambda: is_served(edge), "the next request is served")
