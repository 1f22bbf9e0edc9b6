"""The load of a burst, a process of its own: opens all connections, then sends on all at once.

`python -m tests.bench.generator --address 127.0.0.1:10001 --clients 4096 --name round-1`

Knows only an address and the model's oracle. Speaks with its parent in lines: prints a JSON object
when it has connected, waits for a line on stdin, sends, and prints a JSON object when all is over.
One thread and epoll: what a connection costs here is not there for the stack under test.
"""

import argparse
import errno
import json
import select
import socket
import struct
import sys
from collections import Counter
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from sidecar.sim.model import expected_text
from tests.bench.file_limit import raise_file_limit
from tests.bench.streamed_answer import (
    BrokenAnswerError,
    IncomingAnswer,
    read_answer,
    read_completion,
)

PATH = "/v1/completions"
TOKENS = 20
CONNECT_LIMIT_S = 30.0
"""a SYN sent again after 1, 3, 7 and 15 s fits in"""
RESET = "reset"
CLOSED = "closed before the end"
READ_BYTES = 65536
EVENTS_AT_ONCE = 1024
TCP_INFO_TOTAL_RETRANS = 100
"""offset of `tcpi_total_retrans`, u32, in struct tcp_info (linux/tcp.h)"""


@dataclass(slots=True)
class Client:
    """One connection with its one request. Times are `monotonic()` seconds."""

    request: bytes
    expected: str
    socket: socket.socket
    incoming: IncomingAnswer = field(default_factory=IncomingAnswer)
    connect_s: float | None = None
    sent_at: float | None = None
    first_at: float | None = None
    last_at: float | None = None
    fault: str | None = None


def make_client(address: tuple[str, int], name: str, index: int) -> Client:
    """A client whose prompt, three KV blocks of it, is its own."""
    prompt = f"{name} client {index}: " + " ".join(f"word-{index}-{i}" for i in range(50))
    body = {"model": "sim-model", "prompt": prompt, "max_tokens": TOKENS, "stream": True}
    payload = json.dumps(body).encode()
    head = (
        f"POST {PATH} HTTP/1.1\r\nhost: {address[0]}:{address[1]}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(payload)}\r\n\r\n"
    )
    connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    connection.setblocking(False)
    return Client(head.encode() + payload, expected_text("completions", body, TOKENS), connection)


def connect_all(clients: list[Client], address: tuple[str, int]) -> None:
    """Start every connection before any is waited for; a client that cannot gets a fault."""
    with select.epoll() as poll:
        open_ones: dict[int, tuple[Client, float]] = {}
        for client in clients:
            started = monotonic()
            code = client.socket.connect_ex(address)
            if code not in (0, errno.EINPROGRESS):
                client.fault = f"connect: {errno.errorcode.get(code, code)}"
                continue
            open_ones[client.socket.fileno()] = (client, started)
            poll.register(client.socket, select.EPOLLOUT)
        deadline = monotonic() + CONNECT_LIMIT_S
        while open_ones and (left_s := deadline - monotonic()) > 0:
            for number, _ in poll.poll(left_s, EVENTS_AT_ONCE):
                client, started = open_ones.pop(number)
                poll.unregister(number)
                client.connect_s = monotonic() - started
                code = client.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if code:
                    client.fault = f"connect: {errno.errorcode.get(code, code)}"
        for client, _ in open_ones.values():
            client.fault = f"connect: not within {CONNECT_LIMIT_S:g} s"


def send_all(clients: list[Client]) -> None:
    """Write every request; each fits in an empty socket buffer."""
    for client in clients:
        try:
            sent = client.socket.send(client.request)
        except OSError as error:
            client.fault = fault_of(error)
            continue
        client.sent_at = monotonic()
        if sent < len(client.request):
            client.fault = "send: the socket took a part only"


def read_all(clients: list[Client], limit_s: float) -> None:
    """Read until every answer is whole, its connection has ended, or the limit is over."""
    with select.epoll() as poll:
        open_ones = {c.socket.fileno(): c for c in clients if c.fault is None}
        for number in open_ones:
            poll.register(number, select.EPOLLIN)
        deadline = monotonic() + limit_s
        while open_ones and (left_s := deadline - monotonic()) > 0:
            for number, _ in poll.poll(left_s, EVENTS_AT_ONCE):
                if read_some(open_ones[number]):
                    poll.unregister(number)
                    del open_ones[number]
        for client in open_ones.values():
            client.fault = "no whole answer in time"


def read_some(client: Client) -> bool:
    """One read; whether this client is over, well or not."""
    try:
        data = client.socket.recv(READ_BYTES)
    except BlockingIOError:
        return False
    except OSError as error:
        client.fault = fault_of(error)
        return True
    now = monotonic()
    if not data:
        client.fault = CLOSED
        return True
    if client.first_at is None:
        client.first_at = now
    client.last_at = now
    return client.incoming.feed(data)


def fault_of(error: OSError) -> str:
    name = errno.errorcode.get(error.errno or 0, str(error.errno))
    return RESET if isinstance(error, ConnectionError) else f"socket: {name}"


def judge(client: Client) -> tuple[int, str | None]:
    """The status (0: none came) and what is wrong with the answer (None: nothing)."""
    try:
        answer = read_answer(bytes(client.incoming.data))
    except BrokenAnswerError as error:
        return 0, client.fault or str(error)
    if answer.status != 200:
        reason = answer.headers.get("x-pd-error", "no x-pd-error")
        return answer.status, f"status {answer.status}, {reason}"
    try:
        completion = read_completion(answer.body)
    except BrokenAnswerError as error:
        return 200, str(error)
    if completion.text != client.expected:
        return 200, "the text is not the model's"
    if completion.tokens != TOKENS:
        return 200, f"{completion.tokens} tokens"
    return 200, client.fault


def has_retransmitted(client: Client) -> bool:
    """Whether a SYN of this connection was sent again: nothing else has been sent on it yet."""
    size = TCP_INFO_TOTAL_RETRANS + 4
    info = client.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, size)
    return len(info) == size and struct.unpack_from("I", info, TCP_INFO_TOTAL_RETRANS)[0] > 0


def tell(value: dict[str, Any]) -> None:
    print(json.dumps(value), flush=True)


def result_of(clients: list[Client]) -> dict[str, Any]:
    statuses: Counter[int] = Counter()
    faults: Counter[str] = Counter()
    for client in clients:
        status, fault = judge(client)
        statuses[status] += 1
        if fault is not None:
            faults[fault] += 1
    return {
        "statuses": sorted(statuses.items()),
        "faults": dict(faults),
        "times": [(c.sent_at, c.first_at, c.last_at) for c in clients],
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.bench.generator")
    parser.add_argument("--address", required=True)
    parser.add_argument("--clients", type=int, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--limit-s", type=float, required=True, help="of all answers together")
    arguments = parser.parse_args()
    raise_file_limit()
    host, _, port = arguments.address.rpartition(":")
    address = (host, int(port))
    clients = [make_client(address, arguments.name, i) for i in range(arguments.clients)]
    connect_all(clients, address)
    connected = [client for client in clients if client.fault is None]
    tell(
        {
            "connected": len(connected),
            "connect_s": [client.connect_s for client in connected],
            "retransmitted": sum(map(has_retransmitted, connected)),
        }
    )
    if not sys.stdin.readline():
        return 1  # the parent has gone
    send_all(connected)
    read_all(connected, arguments.limit_s)
    tell(result_of(clients))
    return 0


if __name__ == "__main__":
    sys.exit(main())
