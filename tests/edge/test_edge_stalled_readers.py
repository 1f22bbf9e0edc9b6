"""Thousands of clients that stop reading in the middle of a stream cost Envoy little each."""

import contextlib
import resource
import select
import socket
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep

import pytest
from envoy_edge import Edge, eventually

from tests.requests.raw_http import request

pytestmark = [pytest.mark.e2e, pytest.mark.timed]

CLIENTS = 4096
FILES_EACH = 3
"""of this process, which is client, engine and ext_proc server in one; Envoy has two"""
LIMIT_KIB = 64
RECEIVE_BYTES = 4096
LIMIT_S = 90.0
STILL_S = 2.0


class Clients:
    """Each has sent a request; `begun` have had the first bytes of an answer, and read no more."""

    def __init__(self, port: int, data: bytes) -> None:
        self._poll = select.epoll()
        self._all: dict[int, socket.socket] = {}
        self.begun = 0
        for _ in range(CLIENTS):
            one = socket.socket()
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
            one.connect(("127.0.0.1", port))
            one.sendall(data)
            self._all[one.fileno()] = one
            self._poll.register(one.fileno(), select.EPOLLIN)

    def __enter__(self) -> "Clients":
        return self

    def __exit__(self, *_: object) -> None:
        self._poll.close()
        for one in self._all.values():
            one.close()

    def wait_for_all(self) -> None:
        deadline = monotonic() + LIMIT_S
        while self.begun < CLIENTS:
            assert monotonic() < deadline, f"{self.begun} of {CLIENTS} answers have begun"
            for number, _ in self._poll.poll(1.0):
                assert self._all[number].recv(64).startswith(b"HTTP/1.1 200")
                self._poll.unregister(number)
                self.begun += 1


def resident_kib(edge: Edge) -> int:
    assert edge.record is not None
    text = Path(f"/proc/{edge.record.pid}/status").read_text()
    (line,) = [x for x in text.splitlines() if x.startswith("VmRSS")]
    return int(line.split()[1])


def settled_kib(edge: Edge) -> int:
    """Envoy's memory once it has not grown for a while."""
    most, since = resident_kib(edge), monotonic()
    deadline = since + LIMIT_S
    while monotonic() - since < STILL_S:
        assert monotonic() < deadline, f"Envoy grows on: {most} KiB"
        sleep(0.1)
        now = resident_kib(edge)
        if now > most:
            most, since = now, monotonic()
    return most


@contextlib.contextmanager
def files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = FILES_EACH * CLIENTS + 512
    if hard != resource.RLIM_INFINITY and hard < needed:
        pytest.skip(f"needs {needed} open files, and the hard limit is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def cost_kib(edge: Edge, how: str) -> float:
    """Of one of `CLIENTS` whose engine behaves that way, as `x-test-engine` names it."""
    headers = (f"x-test-to: {edge.engine.address}", f"x-test-engine: {how}")
    before = settled_kib(edge)
    data = request("POST /v1/completions", *headers, body=b"{}")
    with Clients(edge.settings.listen_port, data) as clients:
        clients.wait_for_all()
        cost = (settled_kib(edge) - before) / CLIENTS
    eventually(lambda: edge.engine.open_streams == 0, "the engine's streams have ended", LIMIT_S)
    return cost


def test_a_client_that_stops_reading_costs_envoy_less_than_64_kib(edge: Edge) -> None:
    """Above what its open stream costs anyway, however much its engine has to say. The second crowd
    has the memory that the first left, so it is counted on top."""
    with files():
        open_kib = cost_kib(edge, "stall")
        more_kib = cost_kib(edge, "flood")
    print(f"an open stream: {open_kib:.1f} KiB; one that nobody reads: {more_kib:.1f} more")
    assert 1 < more_kib < LIMIT_KIB
