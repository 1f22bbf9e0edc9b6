"""One connection to an engine: HTTP/1.1, one request at a time, parsed by httptools.

Knows nothing of legs: bytes out, an answer or a fault in.
"""

import asyncio
from collections.abc import Callable
from typing import cast

import httptools

HEAD_MAX_BYTES = 256 << 10
"""of an answer's headers"""


class BrokenAnswer(Exception):
    """The connection ended, or what came over it is not HTTP."""


class Answer:
    """What has come of one answer."""

    __slots__ = ("body", "head_bytes", "headers", "status")

    def __init__(self) -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.head_bytes = 0
        self.body: list[bytes] = []


Ended = Callable[[Answer | BrokenAnswer], None]


class PrefillConnection(asyncio.Protocol):
    """`on_end` of a request is called once, unless `abort` came first."""

    def __init__(self) -> None:
        self.idle_since = 0.0
        self._transport: asyncio.Transport
        self._parser: httptools.HttpResponseParser
        self._answer = Answer()
        self._on_head: Callable[[int], None] = _nothing
        self._on_end: Ended | None = None
        self._has_head = False
        self._may_be_kept = False
        self._ends_with_connection = False

    @property
    def is_open(self) -> bool:
        """It can take another request."""
        return self._on_end is None and not self._transport.is_closing()

    def post(self, head: bytes, body: bytes, on_head: Callable[[int], None], on_end: Ended) -> None:
        """Send a request. `on_head` is told the status when the answer's headers are there."""
        self._answer, self._on_head, self._on_end = Answer(), on_head, on_end
        self._has_head = self._may_be_kept = self._ends_with_connection = False
        self._parser = httptools.HttpResponseParser(self)
        if len(body) < 16384:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))

    def abort(self) -> None:
        """Close at once; what is not sent yet is not sent."""
        self._on_end = None
        self._transport.abort()

    # --- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it

    def data_received(self, data: bytes) -> None:
        if self._on_end is None:  # more than was asked for
            self._transport.abort()
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade, BrokenAnswer) as error:
            self._end(BrokenAnswer(str(error)))

    def connection_lost(self, error: Exception | None) -> None:
        is_whole = error is None and self._has_head and self._ends_with_connection
        self._end(self._answer if is_whole else BrokenAnswer("the connection ended"))

    def _end(self, end: Answer | BrokenAnswer) -> None:
        on_end, self._on_end = self._on_end, None
        if not self._may_be_kept or self._transport.get_write_buffer_size():
            self._transport.abort()
        if on_end is not None:
            on_end(end)

    # --- httptools: its names

    def on_header(self, name: bytes, value: bytes) -> None:
        answer = self._answer
        answer.head_bytes += len(name) + len(value)
        if answer.head_bytes > HEAD_MAX_BYTES:
            raise BrokenAnswer("too many headers")
        answer.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._answer.status = self._parser.get_status_code()
        if self._answer.status < 200:
            return
        self._has_head = True
        names = {name.lower() for name, _ in self._answer.headers}
        self._ends_with_connection = not names & {b"content-length", b"transfer-encoding"}
        self._on_head(self._answer.status)

    def on_body(self, data: bytes) -> None:
        self._answer.body.append(data)

    def on_message_complete(self) -> None:
        if not self._has_head:  # 100 Continue, of which nobody asked
            self._answer = Answer()
            return
        self._may_be_kept = self._parser.should_keep_alive()
        self._end(self._answer)


def _nothing(_status: int) -> None:
    return
