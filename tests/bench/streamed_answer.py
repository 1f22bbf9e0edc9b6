"""One HTTP/1.1 answer as it comes off a socket: when it is whole, and what it says.

Knows no sockets and no clock. While bytes arrive only the end is looked for (cheap, so that reading
one answer does not delay the others' time stamps); `read_answer` checks every byte afterwards.
"""

import json
from dataclasses import dataclass

HEAD_END = b"\r\n\r\n"
LAST_CHUNK = b"\r\n0\r\n\r\n"
DONE = b"[DONE]"


class BrokenAnswerError(ValueError):
    """The bytes are not one whole, valid answer; the message says why."""


class IncomingAnswer:
    """The bytes so far of one answer on a connection that stays open."""

    __slots__ = ("_is_chunked", "_total_bytes", "data")

    def __init__(self) -> None:
        self.data = bytearray()
        self._is_chunked = False
        self._total_bytes: int | None = None

    def feed(self, data: bytes) -> bool:
        """Add what was read; whether the answer is whole now."""
        self.data += data
        if not self._is_chunked and self._total_bytes is None:
            self._find_framing()
        if self._is_chunked:
            return self.data.endswith(LAST_CHUNK)
        return self._total_bytes is not None and len(self.data) >= self._total_bytes

    def _find_framing(self) -> None:
        end = self.data.find(HEAD_END)
        if end < 0:
            return
        headers = _headers(bytes(self.data[:end]))
        self._is_chunked = headers.get("transfer-encoding", "").lower() == "chunked"
        length = headers.get("content-length", "")
        if not self._is_chunked and length.isdecimal():
            self._total_bytes = end + len(HEAD_END) + int(length)


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer. Header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


def read_answer(data: bytes) -> Answer:
    """Read the status line, the headers and the framed body, to the last byte.

    Raises BrokenAnswerError when anything is missing, malformed or left over.
    """
    head, separator, rest = data.partition(HEAD_END)
    if not separator:
        raise BrokenAnswerError("the headers are not whole")
    status_line = head.split(b"\r\n", 1)[0].split(b" ")
    if len(status_line) < 2 or status_line[0] != b"HTTP/1.1" or not status_line[1].isdigit():
        raise BrokenAnswerError(f"not a status line: {head[:40]!r}")
    headers = _headers(head)
    if headers.get("transfer-encoding", "").lower() == "chunked":
        body = _unchunk(rest)
    elif headers.get("content-length") == str(len(rest)):
        body = rest
    else:
        raise BrokenAnswerError("the body's length is not what its headers say")
    return Answer(int(status_line[1]), headers, body)


def _headers(head: bytes) -> dict[str, str]:
    lines = head.decode("latin-1").split("\r\n")[1:]
    pairs = (line.partition(":") for line in lines)
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


def _unchunk(data: bytes) -> bytes:
    parts = []
    at = 0
    while True:
        end = data.find(b"\r\n", at)
        try:
            size = int(data[at:end], 16) if end >= 0 else -1
        except ValueError:
            size = -1
        after = end + 2 + size
        if size < 0 or data[after : after + 2] != b"\r\n":
            raise BrokenAnswerError(f"the chunk at byte {at} is broken or missing")
        if size == 0:
            if len(data) != after + 2:
                raise BrokenAnswerError("bytes follow the last chunk")
            return b"".join(parts)
        parts.append(data[end + 2 : after])
        at = after + 2


@dataclass(frozen=True, slots=True)
class Completion:
    """What a streamed completion said: its text, and how many events carried some of it."""

    text: str
    tokens: int


def read_completion(body: bytes) -> Completion:
    """Read the server-sent events of a streamed /v1/completions answer of one choice.

    Raises BrokenAnswerError for anything but token events followed by exactly one `[DONE]`.
    """
    *events, rest = body.split(b"\n\n")
    if rest:
        raise BrokenAnswerError("the last event is cut")
    if any(not event.startswith(b"data: ") for event in events):
        raise BrokenAnswerError("an event does not start with 'data: '")
    payloads = [event.removeprefix(b"data: ") for event in events]
    dones = payloads.count(DONE)
    if dones != 1 or payloads[-1] != DONE:
        raise BrokenAnswerError(f"{dones} times [DONE], or not at the end")
    try:
        texts = [json.loads(payload)["choices"][0]["text"] for payload in payloads[:-1]]
    except (ValueError, LookupError, TypeError):
        raise BrokenAnswerError("an event is no token") from None
    return Completion("".join(texts), len(texts))
