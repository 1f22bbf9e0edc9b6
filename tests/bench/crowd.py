"""Thousands of clients in one process, each with one connection and one request.

`python -m tests.bench.crowd --address 127.0.0.1:10001 --clients 1000 --chunks 20`

Speaks with its parent in lines of JSON: says when it has connected (unless `--connects-late`: then
connecting is part of the load), waits for `go`, sends (at most `--at-once` unanswered), and says
when each has its first byte. Then `count` tells the chunks so far, `finish` waits for the answers
to be whole, checks every byte and tells what was seen; end of file ends it. `--chunks 0` asks for
whole answers.
"""

import argparse
import asyncio
import contextlib
import json
import math
import sys
from array import array
from collections import Counter
from collections.abc import AsyncIterator
from time import monotonic
from typing import Any, cast

import uvloop

from tests.bench.file_limit import raise_file_limit
from tests.bench.mock_answers import DONE, PATH, chat_body, decode_answer, stream_events
from tests.bench.streamed_answer import BrokenAnswerError, IncomingAnswer, read_answer

BODY_BYTES = 600
EVENT_END = b"\n\n"
UNFINISHED = "not whole in time"


class Client(asyncio.Protocol):
    """One connection. Times are `monotonic()`: uvloop's own clock counts milliseconds."""

    def __init__(self, crowd: "Crowd") -> None:
        self._crowd = crowd
        self._transport: asyncio.Transport | None = None
        self._ends_in_newline = False
        self.incoming = IncomingAnswer()
        self.sent_at = 0.0
        self.first_at: float | None = None
        self.last_at = 0.0
        self.events = 0
        self.is_whole = False
        self.fault: str | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass

    def send(self, request: bytes) -> None:
        self.sent_at = monotonic()
        if self._transport is None:
            self.fail("lost before it was asked")
        else:
            self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        now = monotonic()
        if self.first_at is None:
            self.first_at = now
            self._crowd.answered(self)
        found = data.count(EVENT_END)
        if self._ends_in_newline and data.startswith(b"\n"):
            found += 1  # an event's end that two reads share
        self._ends_in_newline = data.endswith(b"\n") and not data.endswith(EVENT_END)
        if found:
            self._crowd.chunked(found, now - self.last_at if self.events > 1 else None)
            self.events += found
        self.last_at = now
        if self.incoming.feed(data):
            self.is_whole = True
            self._crowd.ended(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if not self.is_whole:
            self.fail("reset" if error else "closed before the end")

    def fail(self, fault: str) -> None:
        if self.fault is None:
            self.fault = fault
            self._crowd.answered(self)
            self._crowd.ended(self)


class Crowd:
    """All clients, and what they saw together."""

    def __init__(self, address: str, count: int, chunks: int, at_once: int) -> None:
        host, _, port = address.rpartition(":")
        self._host, self._port = host, int(port)
        body = chat_body(BODY_BYTES, is_streamed=chunks > 0)
        head = f"POST {PATH} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n"
        self._request = f"{head}content-length: {len(body)}\r\n\r\n".encode() + body
        self._expected = decode_answer().encode()
        if chunks:
            self._expected = b"".join([*stream_events(chunks), DONE])
        self._count = count
        self._began: float | None = None
        self._unanswered = asyncio.Semaphore(at_once or count)
        self._loop = asyncio.get_running_loop()
        self.clients: list[Client] = []
        self._waiting: set[Client] = set()
        self._open: set[Client] = set()
        self._changed = asyncio.Event()
        self.chunks = 0
        self.gaps = array("d")
        """between two chunks of one stream, from the second on: the first may come at any moment of
        the engine's beat"""

    def chunked(self, found: int, gap: float | None) -> None:
        self.chunks += found
        if gap is not None:
            self.gaps.append(gap)
            self.gaps.extend([0.0] * (found - 1))  # they came together

    def answered(self, client: Client) -> None:
        if client in self._waiting:
            self._waiting.discard(client)
            self._unanswered.release()
            self._changed.set()

    def ended(self, client: Client) -> None:
        self._open.discard(client)
        self._changed.set()

    @property
    def age_s(self) -> float:
        """Since it was told to load."""
        return monotonic() - self._began if self._began is not None else 0.0

    async def connect(self) -> int:
        """Returns how many could."""
        await asyncio.gather(*(self._connect_one() for _ in range(self._count)))
        return sum(one.fault is None for one in self.clients)

    async def _connect_one(self) -> Client:
        client = Client(self)
        self.clients.append(client)
        try:
            await self._loop.create_connection(lambda: client, self._host, self._port)
        except OSError as error:
            client.fault = f"connect: {error.strerror or error}"
        except asyncio.CancelledError:
            client.fault = "connect: not in time"
            raise
        return client

    async def load(self, connects_late: bool) -> None:
        """Send everything, and wait until each has a byte."""
        self._began = monotonic()
        if connects_late:
            await asyncio.gather(*(self._connect_and_send() for _ in range(self._count)))
        else:
            for client in self.clients:
                await self._unanswered.acquire()
                self._send(client)
        while self._waiting:
            self._changed.clear()
            await self._changed.wait()

    async def _connect_and_send(self) -> None:
        await self._unanswered.acquire()
        self._send(await self._connect_one())

    def _send(self, client: Client) -> None:
        self._waiting.add(client)
        self._open.add(client)
        if client.fault is None:
            client.send(self._request)
        else:
            self.answered(client)
            self.ended(client)

    async def finish(self) -> None:
        """Until every answer is whole or has failed."""
        while self._open:
            self._changed.clear()
            await self._changed.wait()

    def result(self) -> dict[str, Any]:
        """What all saw; who is not served by now has failed."""
        ended = [one.last_at if one.is_whole else monotonic() for one in self.clients]
        faults = Counter(fault for one in self.clients if (fault := self._judge(one)) is not None)
        well = [one for one in self.clients if one.fault is None]
        return {
            "faults": dict(faults),
            "seconds": max(ended) - (self._began or 0.0),
            "first_s": quantiles([one.first_at - one.sent_at for one in well if one.first_at]),
            "gap_s": quantiles(self.gaps),
        }

    def _judge(self, client: Client) -> str | None:
        if client.fault is not None:
            return client.fault
        if not client.is_whole:
            return UNFINISHED if client.sent_at else "never sent"
        try:
            answer = read_answer(bytes(client.incoming.data))
        except BrokenAnswerError as error:
            return str(error)
        if answer.status != 200:
            return f"status {answer.status}"
        return None if answer.body == self._expected else "not decode's own answer"


def quantiles(values: Any) -> tuple[float, float] | None:
    """p50 and p99 by nearest rank."""
    if not values:
        return None
    ordered = sorted(values)
    return tuple(ordered[math.ceil(len(ordered) * q) - 1] for q in (0.5, 0.99))  # type: ignore[return-value]


async def serve(arguments: argparse.Namespace) -> None:
    crowd = Crowd(arguments.address, arguments.clients, arguments.chunks, arguments.at_once)
    loop = asyncio.get_running_loop()
    orders = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    connected = 0
    if not arguments.connects_late:
        async with within(arguments.limit_s):
            connected = await crowd.connect()
    tell({"connected": connected})
    while order := (await orders.readline()).strip():
        async with within(arguments.limit_s - crowd.age_s):
            match order:
                case b"go":
                    await crowd.load(arguments.connects_late)
                case b"finish":
                    await crowd.finish()
        tell(crowd.result() if order == b"finish" else {"chunks": crowd.chunks})


@contextlib.asynccontextmanager
async def within(limit_s: float) -> AsyncIterator[None]:
    """Ends what takes longer; the result names who was not served by then."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            yield


def tell(value: dict[str, Any]) -> None:
    print(json.dumps(value), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.bench.crowd")
    parser.add_argument("--address", required=True)
    parser.add_argument("--clients", type=int, required=True)
    parser.add_argument("--chunks", type=int, required=True)
    parser.add_argument("--at-once", type=int, default=0, help="0: all")
    parser.add_argument("--connects-late", action="store_true")
    parser.add_argument("--limit-s", type=float, required=True, help="until all is done")
    raise_file_limit()
    uvloop.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
