"""Answers of HTTP/1.1, by httptools: bytes in, an answer out."""

from collections.abc import Callable

import httptools

HEAD_MAX_BYTES = 256 << 10
"""of an answer's headers"""


class BrokenAnswer(Exception):
    """What came is not an answer, or not all of it."""


class Answer:
    """One answer, as far as it has come."""

    __slots__ = ("body", "headers", "is_kept", "status")

    def __init__(self) -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.body: list[bytes] = []
        """its parts"""
        self.is_kept = False
        """the connection may be used again"""


class AnswerReader:
    """Reads one answer. `on_head` is told the status once its headers are there."""

    def __init__(self, on_head: Callable[[int], None]) -> None:
        self.answer: Answer | None = None
        """once it is whole"""
        self._on_head = on_head
        self._reading = Answer()
        self._head_bytes = 0
        self._has_head = False
        self._ends_with_connection = False
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        """Raises BrokenAnswer."""
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            raise BrokenAnswer(str(error)) from None

    def end(self) -> Answer:
        """The connection was closed. Raises BrokenAnswer where that was too early."""
        if not self._has_head or not self._ends_with_connection:
            raise BrokenAnswer("the connection ended")
        return self._reading

    # --- httptools: its names

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > HEAD_MAX_BYTES:
            raise httptools.HttpParserError("too many headers")
        self._reading.headers.append((name, value))

    def on_headers_complete(self) -> None:
        answer = self._reading
        answer.status = self._parser.get_status_code()
        if answer.status < 200:
            return
        self._has_head = True
        names = {name.lower() for name, _ in answer.headers}
        self._ends_with_connection = not names & {b"content-length", b"transfer-encoding"}
        self._on_head(answer.status)

    def on_body(self, data: bytes) -> None:
        self._reading.body.append(data)

    def on_message_complete(self) -> None:
        if self.answer is not None:
            raise httptools.HttpParserError("more than one answer")
        if not self._has_head:  # 100 Continue, of which nobody asked
            self._reading = Answer()
            return
        self._reading.is_kept = self._parser.should_keep_alive()
        self.answer = self._reading
