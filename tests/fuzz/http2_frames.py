"""Envoy's HTTP/2, frame by frame, into one connection of the carrier of our own."""

import asyncio
import logging
import zlib

from tests.edge.fed_connection import outcome

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HELLO = PREFACE + bytes.fromhex("000000040000000000")
HEAD_BYTES = 9
_runner = asyncio.Runner()


def check_http2(data: bytes) -> None:
    """The same is heard and answered however it is cut; all that is answered are whole frames; each
    call ends once, and nothing is left (`fed_connection.outcome` asserts that).

    What no frame of the client's can do is raise anything.
    """
    logging.getLogger("sidecar.edge.http2_server").setLevel(logging.CRITICAL)
    _runner.run(_check(data))


async def _check(data: bytes) -> None:
    whole = await outcome([data])
    size = 1 + zlib.crc32(data) % max(1, min(len(data), 64))
    assert await outcome(data[at : at + size] for at in range(0, len(data), size)) == whole
    _are_frames(whole[1])


def _are_frames(data: bytes) -> None:
    at = 0
    while at < len(data):
        assert len(data) - at >= HEAD_BYTES, "half a frame is sent"
        assert data[at + 3] < 10, "a frame of no known type is sent"
        at += HEAD_BYTES + int.from_bytes(data[at : at + 3], "big")
    assert at == len(data), "a frame is sent that is shorter than it says"


def _headers(stream: int, flags: int = 4) -> bytes:
    return b"\0\0\1\1" + bytes([flags]) + stream.to_bytes(4, "big") + b"\x83"


def _data(stream: int, payload: bytes, flags: int = 0) -> bytes:
    head = len(payload).to_bytes(3, "big") + bytes([0, flags])
    return head + stream.to_bytes(4, "big") + payload


def _message(data: bytes) -> bytes:
    return b"\0" + len(data).to_bytes(4, "big") + data


def seeds() -> tuple[bytes, ...]:
    usual = HELLO + _headers(1) + _data(1, _message(b"hello")) + _data(1, _message(b"end"))
    cut = (
        _headers(1, 0) + bytes.fromhex("00000109040000000186")
        + _data(1, _message(b"cut")[:6]) + _data(1, _message(b"cut")[6:] + _message(b""), 1)
    )  # fmt: skip
    padded = (
        bytes.fromhex("000009012c00000001" "02" "0000000010" "83" "0000")
        + _data(1, b"\2" + _message(b"x") + b"\0\0", 8)
    )  # fmt: skip
    control = bytes.fromhex(
        "000008060000000000" "3132333435363738"  # PING
        "00000c040000000000" "000400000003" "000500010000"  # SETTINGS: small windows, large frames
        "000004080000000000" "00000005"  # WINDOW_UPDATE of the connection
        "000005020000000003" "0000000010"  # PRIORITY
    )  # fmt: skip
    windows = (
        _headers(1) + _headers(3) + _data(1, _message(b"blocked")) + _data(3, _message(b"e"))
        + bytes.fromhex("000006040000000000" "000400000064" "000004080000000001" "00000009")
        + bytes.fromhex("000004030000000001" "00000008")
    )  # fmt: skip
    many = b"".join(_headers(n) + _data(n, _message(b"e"), n >> 1 & 1) for n in range(1, 20, 2))
    goaway = bytes.fromhex("0000080700000000000000000000000000")
    return (
        usual, HELLO + cut, HELLO + padded, HELLO + control + windows, HELLO + many + goaway,
        PREFACE[:10], b"GET / HTTP/1.1\r\n\r\n",
    )  # fmt: skip
