"""HTTP/1.1 byte for byte over a socket: what is sent is what was written, and answers are parted.

Knows no rule of HTTP beyond where a message ends. Every wait has a deadline.
"""

import contextlib
import json
import socket
from dataclasses import dataclass
from time import monotonic

LIMIT_S = 10.0


class Closed(Exception):
    """The other end closed, in the middle of what was waited for or before it."""


class Wire:
    """A connection with what was read and not yet taken."""

    def __init__(self, connection: socket.socket, limit_s: float = LIMIT_S * 6) -> None:
        if connection.family == socket.AF_INET:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(limit_s)
        self._socket = connection
        self._rest = b""

    @classmethod
    def holding(cls, data: bytes) -> "Wire":
        """A connection that brought these bytes and was closed."""
        ours, theirs = socket.socketpair()
        theirs.close()
        made = cls(ours)
        made._rest = data
        return made

    @property
    def is_empty(self) -> bool:
        """Nothing is left of what was read."""
        return not self._rest

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def more(self) -> bytes:
        """At least one byte: whatever is there. Raises Closed."""
        if self._rest:
            taken, self._rest = self._rest, b""
            return taken
        try:
            data = self._socket.recv(65536)
        except ConnectionError:
            data = b""
        if not data:
            raise Closed
        return data

    def take(self, size: int) -> bytes:
        parts, have = [], 0
        while have < size:
            part = self.more()
            parts.append(part)
            have += len(part)
        data = b"".join(parts)
        self._rest = data[size:] + self._rest
        return data[:size]

    def line(self) -> bytes:
        """Without its CRLF."""
        data = b""
        while b"\r\n" not in data:
            data += self.more()
        line, _, rest = data.partition(b"\r\n")
        self._rest = rest + self._rest
        return line

    def rest(self) -> bytes:
        """All that comes until the other end closes."""
        data = b""
        try:
            while True:
                data += self.more()
        except Closed:
            return data

    def is_silent_for(self, seconds: float) -> bool:
        """Whether nothing comes in that time, and the connection stays open."""
        before = self._socket.gettimeout()
        self._socket.settimeout(seconds)
        try:
            self._rest = self.more()
        except TimeoutError:
            return True
        except Closed:
            return False
        finally:
            self._socket.settimeout(before)
        return False


@dataclass(frozen=True)
class Head:
    """First line and fields, in order; names in lower case."""

    first: str
    fields: tuple[tuple[str, str], ...]

    def values(self, name: str) -> list[str]:
        return [value for key, value in self.fields if key == name]

    def get(self, name: str) -> str | None:
        """The only value, or None. Two are a fault."""
        found = self.values(name)
        assert len(found) < 2, f"{name}: {found}"
        return found[0] if found else None


def read_head(wire: Wire) -> Head:
    return Head(wire.line().decode("latin-1"), read_fields(wire))


def read_fields(wire: Wire) -> tuple[tuple[str, str], ...]:
    """Headers or trailers, and the empty line behind them."""
    fields = []
    while line := wire.line():
        name, _, value = line.decode("latin-1").partition(":")
        fields.append((name.lower(), value.strip()))
    return tuple(fields)


def read_chunks(wire: Wire) -> tuple[bytes, tuple[tuple[str, str], ...]]:
    """A chunked body without its extensions, and its trailers."""
    body = b""
    while chunk := read_chunk(wire):
        body += chunk
    return body, read_fields(wire)


def read_chunk(wire: Wire) -> bytes:
    """The next; empty is the last, behind which trailers and an empty line come."""
    size = int(wire.line().partition(b";")[0], 16)
    data = wire.take(size)
    if size:
        wire.line()
    return data


def chunked(data: bytes) -> bytes:
    """One chunk."""
    return b"%x\r\n%s\r\n" % (len(data), data)


@dataclass(frozen=True)
class Answer:
    head: Head
    body: bytes
    trailers: tuple[tuple[str, str], ...] = ()

    @property
    def status(self) -> int:
        return int(self.head.first.split(" ")[1])

    def get(self, name: str) -> str | None:
        return self.head.get(name)

    @property
    def refusal(self) -> tuple[int, str]:
        """Status and reason of an answer in OpenAI's error shape; anything else is a fault."""
        error = json.loads(self.body)["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        assert isinstance(error["message"], str)
        assert error["message"]
        assert self.get("content-type") == "application/json"
        assert self.get("x-pd-error") == error["code"]
        assert "sock" not in error["message"]
        return self.status, error["code"]


class Client:
    """The client's end of a connection."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire

    @classmethod
    def of(cls, url: str, limit_s: float = LIMIT_S) -> "Client":
        host, _, port = url.removeprefix("http://").partition(":")
        return cls(Wire(socket.create_connection((host, int(port)), timeout=limit_s), limit_s))

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.wire.close()

    def send(self, data: bytes) -> None:
        self.wire.send(data)

    def head(self) -> Head:
        return read_head(self.wire)

    def answer(self, *, is_to_head: bool = False) -> Answer:
        """The next whole answer. Raises Closed."""
        head = self.head()
        if is_to_head or head.first.split(" ")[1] in ("100", "204"):
            return Answer(head, b"")
        if head.get("transfer-encoding") == "chunked":
            return Answer(head, *read_chunks(self.wire))
        length = head.get("content-length")
        if length is None:
            return Answer(head, self.wire.rest())
        return Answer(head, self.wire.take(int(length)))

    def chunk(self) -> bytes:
        """The next chunk of an answer; empty at its end, when its trailers are read too."""
        data = read_chunk(self.wire)
        if not data:
            read_fields(self.wire)
        return data

    def is_closed(self, within_s: float = 5.0) -> bool:
        """Whether the other end closes in that time, whatever it says before."""
        deadline = monotonic() + within_s
        while monotonic() < deadline:
            try:
                if self.wire.is_silent_for(0.05):
                    continue
                self.wire.more()
            except Closed:
                return True
        return False


def ask(url: str, data: bytes) -> Answer:
    """These bytes on a connection of their own, and the first answer."""
    with Client.of(url) as client:
        # Who refuses at the headers may close before it has read all; its answer is there to read.
        with contextlib.suppress(ConnectionError):
            client.send(data)
        return client.answer()


def parsed_all(received: bytes, *, is_head: bool = False) -> list[Answer]:
    """The answers in these bytes; 100 Continue is none. `is_head`: the first is to HEAD."""
    answers = []
    with Client(Wire.holding(received)) as client:
        while not client.wire.is_empty:
            found = client.answer(is_to_head=is_head and not answers)
            if found.status != 100:
                answers.append(found)
    return answers


def request(
    line: str, *headers: str, body: bytes = b"", host: str = "Host: edge", length: bool = True
) -> bytes:
    """`POST /x` with these header lines. `length`: a content-length, where there is a body."""
    lines = [f"{line} HTTP/1.1", host, *headers]
    if length and body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(line for line in lines if line).encode("latin-1") + b"\r\n\r\n" + body
