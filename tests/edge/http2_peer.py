"""The HTTP/2 carrier in a thread of its own, and its clients: by the `h2` library, and of bytes.

Tests are plain functions; every wait has a deadline.
"""

import asyncio
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h2.events as events
import pytest
import uvloop
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.settings import SettingCodes
from hyperframe.frame import DataFrame, Frame, HeadersFrame

from sidecar.edge.http2_server import Http2Server
from sidecar.wire.calls import Call

LIMIT_S = 10.0
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
REQUEST = [
    (":method", "POST"), (":scheme", "http"), (":authority", "w"), (":path", "/s/m"),
    ("content-type", "application/grpc"), ("te", "trailers"),
]  # fmt: skip


def eventually(is_true: Callable[[], object], timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_true():
        assert time.monotonic() < deadline, f"not within {timeout_s} s"
        time.sleep(0.005)


def message(data: bytes, *, is_compressed: bool = False) -> bytes:
    """As gRPC has it in DATA frames."""
    return bytes([is_compressed]) + len(data).to_bytes(4, "big") + data


def messages(data: bytes) -> list[bytes]:
    """All of these bytes, which must be whole messages."""
    found = []
    while data:
        assert data[0] == 0, "a reply that is compressed"
        size = int.from_bytes(data[1:5], "big")
        assert len(data) >= 5 + size, "the last message is not whole"
        found.append(data[5 : 5 + size])
        data = data[5 + size :]
    return found


def headers(stream: int, *flags: str, block: bytes = b"\x83") -> bytes:
    """A HEADERS frame, with END_HEADERS if no flags are named; the block is never read."""
    frame = HeadersFrame(stream, block, flags=flags or ["END_HEADERS"])
    return frame.serialize()


def data(stream: int, payload: bytes, *flags: str, pad_length: int = 0) -> bytes:
    """A DATA frame."""
    frame = DataFrame(stream, payload, flags=flags)
    frame.pad_length = pad_length
    return frame.serialize()


class Heard:
    """`calls.Handler`: what one call came to."""

    def __init__(self, call: Call, react: "Callable[[Heard, bytes], None]") -> None:
        self.call = call
        self.messages: list[bytes] = []
        self.closed = 0
        self._react = react

    def on_message(self, data: bytes) -> None:
        self.messages.append(data)
        self._react(self, data)

    def on_closed(self) -> None:
        self.closed += 1


def echo(heard: Heard, data: bytes) -> None:
    """Each message is sent back; `end` ends."""
    heard.call.send(data)
    if data == b"end":
        heard.call.end()


def sends(data: bytes) -> Callable[[Heard, bytes], None]:
    """A reaction: that reply, and the end."""

    def react(heard: Heard, _data: bytes) -> None:
        heard.call.send(data)
        heard.call.end()

    return react


def pattern(size: int) -> bytes:
    """Bytes of which none that is lost, doubled or moved goes unseen."""
    return (b"%015d\n" * (size // 16 + 1) % tuple(range(size // 16 + 1)))[:size]


class Serving:
    def __init__(self, new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
        self.react: Callable[[Heard, bytes], None] = echo
        self.calls: list[Heard] = []
        self.folder = Path(tempfile.mkdtemp(dir="/tmp"))
        self.path = self.folder / "w0.sock"
        self._loop = new_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.server = Http2Server(self.accept)
        self.run(self.server.listen(self.path))

    def accept(self, call: Call) -> Heard:
        heard = Heard(call, lambda one, data: self.react(one, data))
        self.calls.append(heard)
        return heard

    def start(self, work: Coroutine[Any, Any, Any]) -> Any:
        """A future of it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.start(work).result(LIMIT_S)

    def do(self, act: Callable[[], Any]) -> Any:
        """In the loop's thread."""

        async def acted() -> Any:
            return act()

        return self.run(acted())

    def held(self) -> tuple[int, int, int]:
        """Connections, calls, and calls with something pending that the server still knows."""

        def count() -> tuple[int, int, int]:
            found = self.server.connections
            return (
                len(found),
                sum(len(one.calls) for one in found),
                sum(len(one.blocked) for one in found),
            )

        counts: tuple[int, int, int] = self.do(count)
        return counts

    def close(self) -> None:
        self.run(self.server.close(0))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        shutil.rmtree(self.folder)


def served(request: pytest.FixtureRequest) -> Iterator[Serving]:
    """For a fixture with the parameters LOOPS."""
    made = Serving(request.param)
    yield made
    made.close()


LOOPS = [
    pytest.param(asyncio.new_event_loop, id="asyncio"),
    pytest.param(uvloop.new_event_loop, id="uvloop"),
]


@dataclass
class Reply:
    data: bytearray = field(default_factory=bytearray)
    headers: dict[str, str] = field(default_factory=dict)
    trailers: dict[str, str] = field(default_factory=dict)
    is_ended: bool = False
    reset: int | None = None
    """with which code"""
    is_asked: bool = False
    """our half is closed; `h2` does not say then that the stream was reset"""

    @property
    def is_over(self) -> bool:
        return self.reset is not None or (self.is_ended and self.is_asked)

    @property
    def is_good(self) -> bool:
        """gRPC's status is OK, and our half, if open, was given up without an error."""
        status = (self.trailers or self.headers).get("grpc-status")
        return self.is_ended and self.reset in (0, None) and status == "0"


class Peer:
    """A client of the `h2` library, whose windows are as small as the test wants."""

    def __init__(self, path: Path, **settings: int) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(LIMIT_S)
        self.socket.connect(str(path))
        self.h2 = H2Connection(H2Configuration(header_encoding="utf-8"))
        self.h2.initiate_connection()
        if settings:
            self.h2.update_settings(
                {SettingCodes[name.upper()]: value for name, value in settings.items()}
            )
        self.replies: dict[int, Reply] = {}
        self.order: list[int] = []
        """of which call each DATA frame was"""
        self.goaway: int | None = None
        self.is_gone = False
        self._pongs = 0
        self.takes = True
        """it widens the windows by what it gets"""
        self.settle()

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def open(self, *, ends: bool = False) -> int:
        stream = self.h2.get_next_available_stream_id()
        self.h2.send_headers(stream, REQUEST, end_stream=ends)
        self.replies[stream] = Reply(is_asked=ends)
        self.flush()
        return stream

    def send(self, stream: int, data: bytes, *, ends: bool = False) -> None:
        """DATA as large as frames and windows allow."""
        rest = memoryview(data)
        while len(rest) > (size := self._room(stream)):
            self.h2.send_data(stream, bytes(rest[:size]))
            rest = rest[size:]
            self.flush()
        self.h2.send_data(stream, bytes(rest), end_stream=ends)
        self.replies[stream].is_asked |= ends
        self.flush()

    def _room(self, stream: int) -> int:
        while not (size := self.h2.local_flow_control_window(stream)):
            self.receive()
        return min(size, self.h2.max_outbound_frame_size)

    def ask(self, data: bytes) -> int:
        stream = self.open()
        self.send(stream, message(data))
        return stream

    def until(self, condition: Callable[[], object]) -> None:
        while not condition():
            assert not self.is_gone, "the server closed the connection"
            self.receive()

    def over(self, stream: int) -> Reply:
        reply = self.replies[stream]
        self.until(lambda: reply.is_over)
        return reply

    def settle(self) -> None:
        """Until the server has taken all that was sent, and what it said by then is here."""
        self._pongs = 0
        self.h2.ping(b"settled?")
        self.flush()
        self.until(lambda: self._pongs)

    def until_gone(self) -> None:
        while not self.is_gone:
            self.receive()

    def receive(self) -> None:
        try:
            data = self.socket.recv(1 << 18)
        except ConnectionError:
            data = b""
        if not data:
            self.is_gone = True
            return
        for event in self.h2.receive_data(data):
            self._take(event)
        self.flush()

    def _take(self, event: events.Event) -> None:
        if isinstance(event, events.ConnectionTerminated):
            self.goaway = event.last_stream_id
        elif isinstance(event, events.PingAckReceived):
            self._pongs += 1
        reply = self.replies.get(getattr(event, "stream_id", None) or 0)
        if reply is None:
            return
        if isinstance(event, events.ResponseReceived):
            reply.headers = dict(event.headers)
        elif isinstance(event, events.TrailersReceived):
            reply.trailers = dict(event.headers)
        elif isinstance(event, events.DataReceived):
            reply.data += event.data
            self.order.append(event.stream_id)
            if self.takes:
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, events.StreamEnded):
            reply.is_ended = True
        elif isinstance(event, events.StreamReset):
            reply.reset = int(event.error_code)

    def flush(self) -> None:
        data = self.h2.data_to_send()
        if data:
            self.socket.sendall(data)


class Wire:
    """A client of bytes."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(LIMIT_S)
        self.socket.connect(str(path))
        self._data = b""

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def frame(self) -> Frame | None:
        """The next one; None: the server closed."""
        while True:
            found, rest = first_frame(self._data)
            if found is not None:
                self._data = rest
                return found
            try:
                more = self.socket.recv(1 << 16)
            except ConnectionError:
                more = b""
            if not more:
                return None
            self._data += more

    def until(self, kind: type[Frame], **fields: object) -> Frame:
        """The next of that kind."""
        while (found := self.frame()) is not None:
            if isinstance(found, kind) and all(
                getattr(found, name) == value for name, value in fields.items()
            ):
                return found
        raise AssertionError(f"closed before a {kind.__name__}")

    def rest(self) -> list[Frame]:
        """All frames until the server closes."""
        found = []
        while (one := self.frame()) is not None:
            found.append(one)
        return found


def first_frame(data: bytes) -> tuple[Frame | None, bytes]:
    """And what follows it; None while it is not whole."""
    if len(data) < 9:
        return None, data
    found, length = Frame.parse_frame_header(memoryview(data[:9]))
    if len(data) < 9 + length:
        return None, data
    found.parse_body(memoryview(data[9 : 9 + length]))
    return found, data[9 + length :]
