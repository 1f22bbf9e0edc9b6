"""An HTTP/2 client with prior knowledge, whose headers are sent as they are written.

One connection, many streams, read in one thread. Waits have a deadline.
"""

import socket
from dataclasses import dataclass, field
from time import monotonic

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.exceptions import StreamClosedError

LIMIT_S = 10.0
Fields = list[tuple[str, str]]


@dataclass
class Stream:
    """One answer, as far as it has come."""

    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    is_ended: bool = False
    is_reset: bool = False

    @property
    def status(self) -> int:
        return int(self.headers.get(":status", "0"))

    @property
    def is_over(self) -> bool:
        return self.is_ended or self.is_reset


class H2Client:
    def __init__(self, url: str) -> None:
        host, _, port = url.removeprefix("http://").partition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=LIMIT_S)
        config = H2Configuration(
            header_encoding="utf-8",
            validate_outbound_headers=False,
            normalize_outbound_headers=False,
        )
        self._connection = H2Connection(config)
        self._connection.initiate_connection()
        self.streams: dict[int, Stream] = {}
        self.is_gone = False
        self._flush()

    def __enter__(self) -> "H2Client":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def open(
        self, method: str, path: str, *fields: tuple[str, str], ends: bool = False, host: str = "e"
    ) -> int:
        """A new stream with these fields after the pseudo-headers; `ends`: no body follows."""
        stream = self._connection.get_next_available_stream_id()
        pseudo = [(":method", method), (":scheme", "http"), (":path", path), (":authority", host)]
        self._connection.send_headers(stream, [*pseudo, *fields], end_stream=ends)
        self.streams[stream] = Stream()
        self._flush()
        return stream

    def send(self, stream: int, body: bytes, *, ends: bool = True) -> bool:
        """As much as the windows let through; False: the stream was ended by the other side."""
        rest = memoryview(body)
        while rest:
            try:
                window = self._connection.local_flow_control_window(stream)
                size = min(window, self._connection.max_outbound_frame_size, len(rest))
                if size:
                    self._connection.send_data(stream, bytes(rest[:size]))
                    rest = rest[size:]
                    self._flush()
                    continue
            except StreamClosedError:
                return False
            if self.is_gone or self.streams[stream].is_over:
                return False
            self._receive()
        if ends:
            self._connection.end_stream(stream)
            self._flush()
        return True

    def trailers(self, stream: int, *fields: tuple[str, str]) -> None:
        self._connection.send_headers(stream, list(fields), end_stream=True)
        self._flush()

    def post(self, path: str, body: bytes, *fields: tuple[str, str], host: str = "e") -> int:
        json = ("content-type", "application/json")
        stream = self.open("POST", path, json, *fields, host=host)
        self.send(stream, body)
        return stream

    def answer(self, stream: int) -> Stream:
        """Once it is over."""
        deadline = monotonic() + LIMIT_S
        found = self.streams[stream]
        while not found.is_over and not self.is_gone:
            assert monotonic() < deadline, f"no answer in {LIMIT_S} s"
            self._receive()
        return found

    def receive_until(self, stream: int, size: int) -> None:
        """Until so many bytes of its body are there, and no more than that."""
        deadline = monotonic() + LIMIT_S
        while len(self.streams[stream].body) < size:
            assert monotonic() < deadline, f"not {size} bytes in {LIMIT_S} s"
            self._receive()
        assert len(self.streams[stream].body) == size

    def _receive(self) -> None:
        try:
            data = self._socket.recv(65536)
        except ConnectionError:
            data = b""
        if not data:
            self.is_gone = True
            return
        for event in self._connection.receive_data(data):
            self._take(event)
        self._flush()

    def _take(self, event: object) -> None:
        if isinstance(event, ResponseReceived):
            self.streams[event.stream_id].headers = dict(event.headers)
        elif isinstance(event, DataReceived):
            self.streams[event.stream_id].body += event.data
            size = event.flow_controlled_length
            self._connection.acknowledge_received_data(size, event.stream_id)
        elif isinstance(event, StreamEnded):
            self.streams[event.stream_id].is_ended = True
        elif isinstance(event, TrailersReceived):
            self.streams[event.stream_id].headers |= dict(event.headers)
        elif isinstance(event, StreamReset):
            self.streams[event.stream_id].is_reset = True
        elif isinstance(event, ConnectionTerminated):
            self.is_gone = True

    def _flush(self) -> None:
        data = self._connection.data_to_send()
        if data:
            try:
                self._socket.sendall(data)
            except ConnectionError:
                self.is_gone = True
