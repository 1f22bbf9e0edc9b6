"""HTTP/2 frames, and gRPC's messages in them: bytes and values.

What a server of gRPC needs of RFC 9113 and of gRPC's wire contract
(https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md), and no more.
"""

import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME_HEAD = struct.Struct(">HBBBI")
"""length (high 16 bits, low 8), type, flags, stream"""
HEAD_BYTES = 9
FRAME_MAX = 16384
"""the largest payload that we take: the protocol's default, which we leave"""
WINDOW_MAX = (1 << 31) - 1
DEFAULT_WINDOW = 65535

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE = range(9)
CONTINUATION = 9

END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8

NO_ERROR, PROTOCOL_ERROR = 0x0, 0x1
FLOW_CONTROL_ERROR, FRAME_SIZE_ERROR, REFUSED_STREAM = 0x3, 0x6, 0x7

HEADER_TABLE_SIZE, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE = 1, 3, 4, 5

MESSAGE_HEAD = struct.Struct(">BI")
"""of a gRPC message: compressed or not, length"""
MESSAGE_HEAD_BYTES = 5


class ProtocolError(Exception):
    """The peer breaks the protocol. `code` is HTTP/2's error code."""

    def __init__(self, text: str, code: int = PROTOCOL_ERROR) -> None:
        super().__init__(text)
        self.code = code


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    size = len(payload)
    return FRAME_HEAD.pack(size >> 8, size & 0xFF, kind, flags, stream) + payload


def settings(values: dict[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", *item) for item in values.items()))


def read_settings(payload: bytes) -> dict[int, int]:
    """Raises ProtocolError."""
    if len(payload) % 6:
        raise ProtocolError("SETTINGS of an odd size", FRAME_SIZE_ERROR)
    return dict(struct.iter_unpack(">HI", payload))


def window_update(stream: int, size: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", size))


def reset(stream: int, code: int) -> bytes:
    return frame(RST_STREAM, 0, stream, struct.pack(">I", code))


def goaway(last_stream: int, code: int) -> bytes:
    return frame(GOAWAY, 0, 0, struct.pack(">II", last_stream, code))


def unpadded(payload: bytes, flags: int) -> bytes:
    """The content of a DATA frame. Raises ProtocolError."""
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise ProtocolError("padding of more than the frame")
    return payload[1 : len(payload) - payload[0]]


# Header blocks in HPACK: `:status: 200` is entry 8 of the static table, `content-type` the name of
# entry 31; the others are literals that enter no table.
RESPONSE = b"\x88\x0f\x10\x10application/grpc"
TRAILERS_OK = b"\x00\x0bgrpc-status\x010"
