"""HTTP/2 frames, and gRPC's messages in them: bytes and values.

What a server of gRPC needs of RFC 9113 and of gRPC's wire contract
(https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md), and no more.
"""

import struct
from collections.abc import Iterator

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME_HEAD = struct.Struct(">HBBBI")
"""length (high 16 bits, low 8), type, flags, stream"""
HEAD_BYTES = 9
FRAME_MAX = 16384
"""the largest payload that we take: the protocol's default, which we leave"""
FRAME_LIMIT = (1 << 24) - 1
"""what the protocol allows at most"""
WINDOW_MAX = (1 << 31) - 1
DEFAULT_WINDOW = 65535
STREAM_MASK = (1 << 31) - 1
"""the bit above is reserved, and to be ignored"""

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE = range(9)
CONTINUATION = 9

END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
PRIORITIZED = 0x20

NO_ERROR, PROTOCOL_ERROR, INTERNAL_ERROR = 0x0, 0x1, 0x2
FLOW_CONTROL_ERROR, FRAME_SIZE_ERROR, REFUSED_STREAM = 0x3, 0x6, 0x7

HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE = range(
    1, 6
)

MESSAGE_HEAD = struct.Struct(">BI")
"""of a gRPC message: compressed or not, length"""
MESSAGE_HEAD_BYTES = 5

_SIZES = {PRIORITY: 5, RST_STREAM: 4, PING: 8, WINDOW_UPDATE: 4}
_OF_THE_CONNECTION = (SETTINGS, PING, GOAWAY)
_OF_A_STREAM = (PRIORITY, RST_STREAM)
_PRIORITY_BYTES = 5


class ProtocolError(Exception):
    """The peer breaks the protocol. `code` is HTTP/2's error code.

    It ends the connection, also where the fault is of one stream (RFC 9113, 5.4.2, allows that):
    the peer is one program, and what it gets wrong once it gets wrong again.
    """

    def __init__(self, text: str, code: int = PROTOCOL_ERROR) -> None:
        super().__init__(text)
        self.code = code


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    size = len(payload)
    return FRAME_HEAD.pack(size >> 8, size & 0xFF, kind, flags, stream) + payload


def settings(values: dict[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", *item) for item in values.items()))


def window_update(stream: int, size: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", size))


def reset(stream: int, code: int) -> bytes:
    return frame(RST_STREAM, 0, stream, struct.pack(">I", code))


def goaway(last_stream: int, code: int) -> bytes:
    return frame(GOAWAY, 0, 0, struct.pack(">II", last_stream, code))


Frame = tuple[int, int, int, bytes, int, int]
"""type, flags, stream, and the payload: data, begin, end"""


class Frames:
    """Takes a client's bytes apart, from its preface on. What it gives is right in itself: sizes,
    padding, where a header block may go on, what is of a stream and what of the connection."""

    def __init__(self) -> None:
        self._rest = b""
        """no whole frame yet"""
        self._has_preface = False
        self._in_headers = 0
        """the stream whose header block goes on; 0: none"""

    def take(self, data: bytes) -> Iterator[Frame]:
        """All frames that are whole with these bytes; to be called again once they are taken.

        Raises ProtocolError.
        """
        if self._rest:
            data, self._rest = self._rest + data, b""
        at, size = 0, len(data)
        if not self._has_preface:
            at = len(PREFACE)
            if data[:at] != PREFACE[:size]:
                raise ProtocolError("the client does not speak HTTP/2")
            if size < at:
                self._rest = data
                return
            self._has_preface = True
        while size - at >= HEAD_BYTES:
            high, low, kind, flags, stream = FRAME_HEAD.unpack_from(data, at)
            length = high << 8 | low
            if length > FRAME_MAX:
                raise ProtocolError(f"a frame of {length} bytes", FRAME_SIZE_ERROR)
            begin = at + HEAD_BYTES
            at = begin + length
            if at > size:
                at = begin - HEAD_BYTES
                break
            stream &= STREAM_MASK
            if kind != DATA or self._in_headers:
                self._check(kind, flags, stream, data, begin, at)
            yield kind, flags, stream, data, begin, at
        self._rest = data[at:]

    def _check(self, kind: int, flags: int, stream: int, data: bytes, begin: int, end: int) -> None:
        in_headers = self._in_headers
        if in_headers and (kind, stream) != (CONTINUATION, in_headers):
            raise ProtocolError("a header block that does not go on")
        if kind in (HEADERS, CONTINUATION):
            if kind == CONTINUATION and not in_headers:
                raise ProtocolError("a header block that was not begun")
            if kind == HEADERS and flags & (PADDED | PRIORITIZED):
                _check_headers(flags, data[begin:end])
            self._in_headers = 0 if flags & END_HEADERS else stream
            return
        size = end - begin
        if kind in _SIZES and size != _SIZES[kind]:
            raise ProtocolError(f"a frame of type {kind} with {size} bytes", FRAME_SIZE_ERROR)
        if kind == SETTINGS and flags & ACK and size:
            raise ProtocolError("an ACK that says something", FRAME_SIZE_ERROR)
        if (kind in _OF_THE_CONNECTION and stream) or (kind in _OF_A_STREAM and not stream):
            raise ProtocolError(f"a frame of type {kind} on stream {stream}")
        if kind == PUSH_PROMISE:
            raise ProtocolError("a client that pushes")


def _check_headers(flags: int, payload: bytes) -> None:
    """That padding and priority leave a header block, which nobody reads."""
    block = unpadded(payload, flags)
    if flags & PRIORITIZED and len(block) < _PRIORITY_BYTES:
        raise ProtocolError("a priority of another size", FRAME_SIZE_ERROR)


def read_settings(payload: bytes) -> dict[int, int]:
    """Of a setting named twice, the last counts. Raises ProtocolError."""
    if len(payload) % 6:
        raise ProtocolError("SETTINGS of an odd size", FRAME_SIZE_ERROR)
    values = dict(struct.iter_unpack(">HI", payload))
    if values.get(INITIAL_WINDOW_SIZE, 0) > WINDOW_MAX:
        raise ProtocolError("a window that is too large", FLOW_CONTROL_ERROR)
    if not FRAME_MAX <= values.get(MAX_FRAME_SIZE, FRAME_MAX) <= FRAME_LIMIT:
        raise ProtocolError("a largest frame that is none")
    if values.get(ENABLE_PUSH, 0) > 1:
        raise ProtocolError("ENABLE_PUSH that is neither yes nor no")
    return values


def read_window(payload: bytes) -> int:
    """By how much it grows. Raises ProtocolError."""
    size = int(struct.unpack(">I", payload)[0]) & WINDOW_MAX
    if not size:
        raise ProtocolError("a window that grows by nothing")
    return size


def widened(window: int, size: int) -> int:
    """Raises ProtocolError."""
    window += size
    if window > WINDOW_MAX:
        raise ProtocolError("a window that is too large", FLOW_CONTROL_ERROR)
    return window


def unpadded(payload: bytes, flags: int) -> bytes:
    """The content of a DATA frame. Raises ProtocolError."""
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise ProtocolError("padding of more than the frame")
    return payload[1 : len(payload) - payload[0]]


class Messages:
    """Puts the gRPC messages of one stream together."""

    __slots__ = ("_have", "_parts", "_size")

    def __init__(self) -> None:
        self._parts: list[memoryview] = []
        """of a message that is not whole yet, `_have` bytes; without its head, once that is read"""
        self._have = 0
        self._size: int | None = None
        """of the message, by its head; None: that is not whole yet"""

    def take(self, data: bytes, begin: int, end: int) -> list[bytes]:
        """All that are whole with these bytes of `data`. Raises ProtocolError."""
        messages = []
        if self._parts:
            self._parts.append(memoryview(data)[begin:end])
            self._have += end - begin
            if self._have < (MESSAGE_HEAD_BYTES if self._size is None else self._size):
                return []
            data, begin, end = b"".join(self._parts), 0, self._have
            self._parts = []
            if self._size is not None:
                begin, self._size = self._size, None
                messages.append(data if begin == end else data[:begin])
        while end - begin >= MESSAGE_HEAD_BYTES:
            is_compressed, size = MESSAGE_HEAD.unpack_from(data, begin)
            if is_compressed:
                raise ProtocolError("a compressed message, which was not offered")
            begin += MESSAGE_HEAD_BYTES
            if end - begin < size:
                self._size = size
                self._parts, self._have = [memoryview(data)[begin:end]], end - begin
                return messages
            messages.append(data[begin : begin + size])
            begin += size
        if begin < end:
            self._parts, self._have = [memoryview(data)[begin:end]], end - begin
        return messages


# Header blocks in HPACK: `:status: 200` is entry 8 of the static table, `content-type` the name of
# entry 31; the others are literals that enter no table.
NO_TABLE = b"\x20"
"""before the first block: our table is empty, whatever size the client allows, now or later"""
RESPONSE = b"\x88\x0f\x10\x10application/grpc"
TRAILERS_OK = b"\x00\x0bgrpc-status\x010"
