"""A mock decode engine that streams at a steady pace, for thousands of clients at once.

`python -m tests.bench.stream_engine --port 8000`

The first token goes out with the headers; then, at every tick, one to each open stream, all in one
pass, as an engine's step gives one to each of its batch. Who does not ask for a stream gets a whole
answer at once. `GET /bench?pace_ms=50&chunks=20` sets the pace, `GET /bench/count` counts requests.
"""

import argparse
import asyncio
import re
from typing import cast

import uvloop

from tests.bench.file_limit import raise_file_limit
from tests.bench.mock_answers import DONE, MODELS, VERSION, decode_answer, stream_events

HEAD_END = b"\r\n\r\n"
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)
STREAM = re.compile(rb'"stream": *true')
SET = re.compile(rb"/bench\?pace_ms=(\d+)&chunks=(\d+)")
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
BACKLOG = 16384


def whole(text: str) -> bytes:
    body = text.encode()
    head = (
        f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def framed(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


class Engine:
    """The open streams and the clock that feeds them."""

    def __init__(self) -> None:
        self.requests = 0
        self.pace_s = 0.05
        self.chunks: list[bytes] = []
        self.streams: set[Connection] = set()
        self.answer = whole(decode_answer())
        self.set_pace(50, 20)

    def set_pace(self, pace_ms: int, chunks: int) -> None:
        """For streams that begin after it; `chunks` tokens each."""
        self.pace_s = pace_ms / 1000
        *tokens, last = [framed(event) for event in stream_events(chunks)]
        self.chunks = [*tokens, last + framed(DONE) + b"0\r\n\r\n"]

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            due = max(due + self.pace_s, loop.time())
            await asyncio.sleep(due - loop.time())
            for stream in list(self.streams):
                stream.next_chunk()

    def reply(self, target: bytes, body: bytes) -> bytes | None:
        """What to answer; None for a stream."""
        if target == b"/bench/count":
            return whole(str(self.requests))
        if setting := SET.fullmatch(target):
            self.set_pace(int(setting[1]), int(setting[2]))
            return whole("{}")
        self.requests += 1
        known = {b"/health": "", b"/version": VERSION, b"/v1/models": MODELS}
        if target in known:
            return whole(known[target])
        return None if STREAM.search(body) else self.answer


class Connection(asyncio.Protocol):
    """One client's connection, one request after another."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None
        self._chunks: list[bytes] = []
        self._sent = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass

    def connection_lost(self, _error: Exception | None) -> None:
        self._engine.streams.discard(self)
        self._transport = None

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (request := self._next_request()) is not None and self._transport is not None:
            answer = self._engine.reply(*request)
            if answer is not None:
                self._transport.write(answer)
                continue
            self._chunks, self._sent = self._engine.chunks, 1
            self._transport.write(STREAM_HEAD + self._chunks[0])
            if len(self._chunks) > 1:
                self._engine.streams.add(self)

    def _next_request(self) -> tuple[bytes, bytes] | None:
        """Target and body of a request that is whole."""
        end = self._received.find(HEAD_END)
        if end < 0:
            return None
        head = bytes(self._received[:end])
        start = end + len(HEAD_END)
        if CHUNKED.search(head):
            stop = self._received.find(b"0\r\n\r\n", start) + 5
            if stop < 5:
                return None
        else:
            length = LENGTH.search(head)
            stop = start + (int(length[1]) if length else 0)
        if len(self._received) < stop:
            return None
        body = bytes(self._received[start:stop])
        del self._received[:stop]
        return head.split(b" ", 2)[1], body

    def next_chunk(self) -> None:
        if self._transport is None:
            return
        self._transport.write(self._chunks[self._sent])
        self._sent += 1
        if self._sent == len(self._chunks):
            self._engine.streams.discard(self)


async def serve(port: int) -> None:
    engine = Engine()
    loop = asyncio.get_running_loop()
    await loop.create_server(lambda: Connection(engine), "127.0.0.1", port, backlog=BACKLOG)
    await engine.run()


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.bench.stream_engine")
    parser.add_argument("--port", type=int, required=True)
    arguments = parser.parse_args()
    raise_file_limit()
    uvloop.run(serve(arguments.port))


if __name__ == "__main__":
    main()
