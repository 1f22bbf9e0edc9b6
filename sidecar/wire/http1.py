"""HTTP/1.1 of the prefill legs: the head of a request, and answers (by httptools)."""

from collections.abc import Callable

import httptools

HEAD_MAX_BYTES = 256 << 10
"""Of an answer's headers; also what may come before, between and after the parts of its body. The
parser copies a header anew with each piece of it, so one of 26 MB cost 7 s."""


class BrokenAnswer(Exception):
    """What came is not an answer, or not all of it."""


class Answer:
    """One answer, as far as it has come."""

    __slots__ = ("body", "headers", "is_kept", "status")

    def __init__(self) -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        """without trailers, which nothing here understands"""
        self.body: list[bytes] = []
        """its parts"""
        self.is_kept = False
        """the connection may be used again"""


class AnswerReader:
    """Reads one answer. `on_head` is told the status once its headers are there.

    Invariant: what it reads does not depend on how the bytes were cut (only how soon a limit is
    noticed does); what follows a whole answer spoils the connection, not the answer."""

    def __init__(self, on_head: Callable[[int], None]) -> None:
        self.answer: Answer | None = None
        """once it is whole; then nothing more is fed"""
        self._on_head = on_head
        self._reading = Answer()
        self._head_bytes = 0
        self._silent_bytes = 0
        """fed since a part of the body came, or the headers were there"""
        self._has_head = False
        self._ends_with_connection = False
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        """Raises BrokenAnswer."""
        assert self._parser is not None, "it is over"
        self._silent_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if self.answer is None:
                raise BrokenAnswer(str(error)) from None
            self.answer.is_kept = False
        else:
            if self.answer is None and self._silent_bytes > HEAD_MAX_BYTES:
                raise BrokenAnswer("too many headers")

    def end(self) -> Answer:
        """The connection was closed. Raises BrokenAnswer where that was too early."""
        if not self._has_head or not self._ends_with_connection:
            raise BrokenAnswer("the connection ended")
        return self._reading

    def stop(self) -> None:
        """Nothing more is fed. The parser and this know each other: left so, the answer, and all
        that `on_head` knows, would stay in memory until the next garbage collection."""
        self._parser = None

    # --- httptools: its names

    def on_message_begin(self) -> None:
        if self.answer is not None:
            raise httptools.HttpParserError("more than one answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._has_head:
            return
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > HEAD_MAX_BYTES:
            raise httptools.HttpParserError("too many headers")
        self._reading.headers.append((name, value.strip(b" \t")))

    def on_headers_complete(self) -> None:
        assert self._parser is not None
        answer = self._reading
        answer.status = self._parser.get_status_code()
        if not 100 <= answer.status <= 599:
            raise httptools.HttpParserError("no such status")
        if answer.status < 200:
            return
        self._has_head = True
        self._silent_bytes = 0
        names = {name.lower() for name, _ in answer.headers}
        self._ends_with_connection = not names & {b"content-length", b"transfer-encoding"}
        self._on_head(answer.status)

    def on_body(self, data: bytes) -> None:
        self._silent_bytes = 0
        self._reading.body.append(data)

    def on_message_complete(self) -> None:
        if not self._has_head:  # 100 Continue, of which nobody asked
            self._reading = Answer()
            return
        assert self._parser is not None
        self._reading.is_kept = self._parser.should_keep_alive()
        self.answer = self._reading


def post_head(path: str, host: str, headers: dict[str, str], body_bytes: int) -> bytes:
    """Of a POST, to the blank line. Raises ValueError for what would end a line early, and for
    what is not latin-1, as which header values come from Envoy (`ext_proc.decode`)."""
    lines = [f"{name}: {value}\r\n" for name, value in headers.items()]
    text = (
        f"POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-length: {body_bytes}\r\n"
        f"{''.join(lines)}\r\n"
    )
    ends = len(lines) + 4
    if text.count("\n") != ends or text.count("\r") != ends or "\0" in text:
        raise ValueError("a header with a line break, or a NUL")
    return text.encode("latin-1")


_NOT_FOR_THE_CLIENT = frozenset(
    (
        "connection", "content-length", "date", "keep-alive",
        "proxy-authenticate", "host", "server", "set-cookie", "te", "trailer",
        "transfer-encoding", "upgrade", "via", "x-request-id",
    )
)  # fmt: skip
"""Of one connection, or said anew by the edge."""


def for_the_client(headers: list[tuple[bytes, bytes]]) -> dict[str, str]:
    """Of an answer's headers those that go on, names in lower case, values to their byte."""
    joined: dict[str, str] = {}
    for name, value in headers:
        key = name.decode("latin-1").lower()
        if key not in _NOT_FOR_THE_CLIENT:
            text = value.decode("latin-1")
            joined[key] = f"{joined[key]}, {text}" if key in joined else text
    return joined
