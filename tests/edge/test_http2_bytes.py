"""The HTTP/2 carrier against bytes: cut anywhere, at the edge of RFC 9113 and beyond."""

import pytest
from fed_connection import Fed, outcome
from http2_peer import (
    LOOPS,
    PREFACE,
    Serving,
    Wire,
    data,
    eventually,
    first_frame,
    headers,
    message,
    served,
)
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    PushPromiseFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from sidecar.edge import http2_server
from sidecar.edge.http2_server import Http2Server

serving = pytest.fixture(params=LOOPS)(served)

WINDOW_MAX = (1 << 31) - 1
PROTOCOL, FLOW_CONTROL, FRAME_SIZE = 1, 3, 6
HELLO = PREFACE + SettingsFrame(0).serialize()


def raw(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A frame that need not be right."""
    return (
        len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload
    )


def padded_headers(stream: int) -> bytes:
    """With padding and a priority."""
    frame = HeadersFrame(
        stream, b"\x83\x86", flags=["END_HEADERS", "PADDED", "PRIORITY"], depends_on=0
    )
    frame.pad_length = 7
    return frame.serialize()


def split_headers(stream: int, *flags: str) -> bytes:
    """In three frames."""
    parts = [ContinuationFrame(stream, b"\x86"), ContinuationFrame(stream, b"\x87")]
    parts[1].flags.add("END_HEADERS")
    first = HeadersFrame(stream, b"\x83", flags=flags)
    return b"".join(part.serialize() for part in (first, *parts))


SCRIPT = b"".join(
    [
        HELLO,
        padded_headers(1),
        data(1, message(b"one"), "PADDED", pad_length=3),
        split_headers(3),
        data(3, message(b"cut")[:3]),
        data(1, b"", "PADDED", pad_length=5),
        data(3, message(b"cut")[3:] + message(b"") + message(b"two") + message(b"rest")[:5]),
        PingFrame(0, b"12345678").serialize(),
        data(3, message(b"rest")[5:]),
        headers(5, "END_HEADERS", "END_STREAM"),
        raw(0xFA, 0xFF, 77, b"unknown"),
        headers(7),
        data(7, message(b"last"), "END_STREAM"),
        headers(9),
        data(9, message(b"trailers")),
        headers(9, "END_HEADERS", "END_STREAM"),
        headers(11),
        RstStreamFrame(11, error_code=8).serialize(),
        data(1, message(b"end") + message(b"not heard")),
        data(3, message(b"e")),
    ]
)
HEARD = [
    ("message", 1, b"one"),
    ("message", 2, b"cut"),
    ("message", 2, b""),
    ("message", 2, b"two"),
    ("message", 2, b"rest"),
    ("closed", 3, b""),
    ("message", 4, b"last"),
    ("closed", 4, b""),
    ("message", 5, b"trailers"),
    ("closed", 5, b""),
    ("closed", 6, b""),
    ("message", 1, b"end"),
    ("ended", 1, b""),
    ("message", 2, b"e"),
    ("ended", 2, b""),
]


@pytest.mark.asyncio
async def test_cut_at_every_byte() -> None:
    """In two, and all in pieces of one to nine bytes: the same is heard and said as in one read."""
    whole = await outcome([SCRIPT])
    assert whole[0] == HEARD
    for at in range(len(SCRIPT)):
        assert await outcome([SCRIPT[:at], SCRIPT[at:]]) == whole, at
    for size in range(1, 10):
        pieces = [SCRIPT[at : at + size] for at in range(0, len(SCRIPT), size)]
        assert await outcome(pieces) == whole, size


@pytest.mark.asyncio
async def test_messages_cut_at_every_byte_over_frames() -> None:
    """Five messages, of which one is empty, in two frames and in frames of one to nine bytes."""
    sent = [b"a", b"", b"bcd", b"x" * 40, b"end"]
    stream = b"".join(message(one) for one in sent)
    cuts = [[stream[:at], stream[at:]] for at in range(len(stream))]
    cuts += [
        [stream[at : at + size] for at in range(0, len(stream), size)] for size in range(1, 10)
    ]
    for cut in cuts:
        frames = b"".join(data(1, piece) for piece in cut)
        events, _, is_closed = await outcome([HELLO + headers(1) + frames])
        assert [one for what, _, one in events if what == "message"] == sent, cut
        assert not is_closed


BEGUN = headers(1)
SPENT = headers(1) + data(1, message(b"end"))
"""ended by us"""

WRONG: dict[str, tuple[bytes, int]] = {
    "a frame that is too large": (BEGUN + raw(0, 0, 1, bytes(16385)), FRAME_SIZE),
    "a call of an even number": (headers(2), PROTOCOL),
    "a call of an even number, before the last": (headers(5) + headers(2), PROTOCOL),
    "a call of number 0": (raw(1, 4, 0, b"\x83"), PROTOCOL),
    "a number that goes back": (headers(5) + headers(3), PROTOCOL),
    "a call begun twice": (BEGUN + headers(1), PROTOCOL),
    "a call begun again": (SPENT + headers(1), PROTOCOL),
    "data of no call": (raw(0, 0, 0, b"x"), PROTOCOL),
    "data of an idle call": (data(1, b"x"), PROTOCOL),
    "data of an even number": (headers(5) + data(2, b"x"), PROTOCOL),
    "a reset of no call": (raw(3, 0, 0, bytes(4)), PROTOCOL),
    "a reset of an idle call": (raw(3, 0, 1, bytes(4)), PROTOCOL),
    "a reset of another size": (BEGUN + raw(3, 0, 1, bytes(5)), FRAME_SIZE),
    "a window of an idle call": (raw(8, 0, 1, b"\0\0\0\1"), PROTOCOL),
    "a window of another size": (raw(8, 0, 0, b"\0\0\1"), FRAME_SIZE),
    "the connection's window by 0": (raw(8, 0, 0, bytes(4)), PROTOCOL),
    "a call's window by 0": (BEGUN + raw(8, 0, 1, bytes(4)), PROTOCOL),
    "the connection's window beyond": (
        WindowUpdateFrame(0, WINDOW_MAX - 65534).serialize(),
        FLOW_CONTROL,
    ),
    "a call's window beyond": (
        BEGUN + WindowUpdateFrame(1, WINDOW_MAX - 65534).serialize(),
        FLOW_CONTROL,
    ),
    "a call's window beyond, by settings": (
        BEGUN
        + WindowUpdateFrame(1, WINDOW_MAX - 65535).serialize()
        + SettingsFrame(0, {4: 65536}).serialize(),
        FLOW_CONTROL,
    ),
    "settings of a call": (BEGUN + raw(4, 0, 1), PROTOCOL),
    "settings of an odd size": (raw(4, 0, 0, bytes(7)), FRAME_SIZE),
    "an ACK with settings": (raw(4, 1, 0, bytes(6)), FRAME_SIZE),
    "a first window that is too large": (raw(4, 0, 0, b"\0\4\x80\0\0\0"), FLOW_CONTROL),
    "frames below the least": (raw(4, 0, 0, b"\0\5\0\0\x3f\xff"), PROTOCOL),
    "frames of no bytes": (raw(4, 0, 0, b"\0\5\0\0\0\0"), PROTOCOL),
    "frames beyond the most": (raw(4, 0, 0, b"\0\5\1\0\0\0"), PROTOCOL),
    "a push that is neither yes nor no": (raw(4, 0, 0, b"\0\2\0\0\0\2"), PROTOCOL),
    "a ping of a call": (BEGUN + raw(6, 0, 1, bytes(8)), PROTOCOL),
    "a ping of another size": (raw(6, 0, 0, bytes(7)), FRAME_SIZE),
    "a goaway of a call": (BEGUN + raw(7, 0, 1, bytes(8)), PROTOCOL),
    "a push": (BEGUN + PushPromiseFrame(1, 2, b"\x83").serialize(), PROTOCOL),
    "a header block that was not begun": (BEGUN + raw(9, 4, 1), PROTOCOL),
    "a header block of two calls": (headers(1, "PRIORITY") + raw(9, 4, 3), PROTOCOL),
    "a ping in a header block": (headers(1, "PRIORITY") + raw(6, 0, 0, bytes(8)), PROTOCOL),
    "data in a header block": (headers(1, "PRIORITY") + raw(0, 0, 1, message(b"x")), PROTOCOL),
    "an unknown frame in a header block": (headers(1, "PRIORITY") + raw(99, 0, 1), PROTOCOL),
    "data padded beyond its end": (BEGUN + raw(0, 8, 1, b"\4abc"), PROTOCOL),
    "data padded without a length": (BEGUN + raw(0, 8, 1), PROTOCOL),
    "data of an ended call padded beyond its end": (SPENT + raw(0, 8, 1, b"\1"), PROTOCOL),
    "headers padded beyond their end": (raw(1, 12, 1, b"\2\x83"), PROTOCOL),
    "headers padded without a length": (raw(1, 12, 1), PROTOCOL),
    "headers with half a priority": (raw(1, 0x24, 1, bytes(4)), FRAME_SIZE),
    "headers whose padding takes the priority": (raw(1, 0x2C, 1, b"\5" + bytes(9)), FRAME_SIZE),
    "a priority of another size": (BEGUN + raw(2, 0, 1, bytes(4)), FRAME_SIZE),
    "a priority of no call": (raw(2, 0, 0, bytes(5)), PROTOCOL),
    "a compressed message": (BEGUN + data(1, message(b"x", is_compressed=True)), PROTOCOL),
    "a compressed message, second of two": (
        BEGUN + data(1, message(b"x") + message(b"x", is_compressed=True)),
        PROTOCOL,
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_breaks_the_protocol_ends_the_connection(serving: Serving, name: str) -> None:
    """With a GOAWAY that says why; its calls hear it once, and other connections go on."""
    sent, code = WRONG[name]
    with Wire(serving.path) as other, Wire(serving.path) as wire:
        other.send(HELLO + headers(1))
        eventually(lambda: len(serving.calls) == 1)
        wire.send(HELLO + sent)
        last = wire.rest()[-1]
        assert isinstance(last, GoAwayFrame)
        assert last.error_code == code
        eventually(lambda: serving.held() == (1, 1, 0))
        other.send(data(1, message(b"end")))
        other.until(RstStreamFrame, error_code=0)
    assert all(heard.closed == 1 for heard in serving.calls[1:] if b"end" not in heard.messages)


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nXX", b"\x16"])
def test_another_protocol(serving: Serving, sent: bytes) -> None:
    """Known by its first wrong byte."""
    with Wire(serving.path) as wire:
        wire.send(sent)
        assert isinstance(wire.rest()[-1], GoAwayFrame)


HARMLESS: dict[str, bytes] = {
    "frames of an unknown type": raw(0x42, 0xFF, 0, b"x") + raw(0xFF, 0, 1, bytes(16384)),
    "an unknown setting": SettingsFrame(0, {0x99: 5}).serialize(),
    "a setting twice": raw(4, 0, 0, b"\0\4\0\0\0\0\0\4\0\1\0\0"),
    "a priority, also of an idle call": PriorityFrame(5).serialize() + PriorityFrame(1).serialize(),
    "a goaway": GoAwayFrame(0, last_stream_id=0).serialize(),
    "an ACK of no ping": PingFrame(0, b"12345678", flags=["ACK"]).serialize(),
    "data of an ended call": SPENT + data(1, message(b"x")) + data(1, b"", "END_STREAM"),
    "a reset of an ended call": SPENT + RstStreamFrame(1, error_code=8).serialize(),
    "a window of an ended call": SPENT + WindowUpdateFrame(1, 5).serialize(),
    "trailers of an ended call": SPENT + headers(1, "END_HEADERS", "END_STREAM"),
    "trailers of an ended call in parts": SPENT + split_headers(1, "END_STREAM"),
    "data of a call that was reset": BEGUN + RstStreamFrame(1).serialize() + data(1, b"\1xx"),
    "a window with the reserved bit": raw(8, 0, 0, b"\x80\0\0\1"),
    "a frame with the reserved bit": raw(4, 0, 1 << 31),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_what_means_nothing_costs_nothing(serving: Serving, name: str) -> None:
    """The connection goes on, and the next call is served; its number has the reserved bit too."""
    with Wire(serving.path) as wire:
        wire.send(HELLO + HARMLESS[name] + raw(1, 4, 1 << 31 | 7, b"\x83"))
        wire.send(raw(0, 0, 1 << 31 | 7, message(b"end")))
        assert bytes(wire.until(DataFrame, stream_id=7).data) == message(b"end")
        wire.until(RstStreamFrame, stream_id=7, error_code=0)


def test_ping_and_settings_are_answered(serving: Serving) -> None:
    """With ACKs, of the same content; what is an ACK itself is not."""
    with Wire(serving.path) as wire:
        wire.send(HELLO)
        preamble = wire.frame()
        assert isinstance(preamble, SettingsFrame)
        assert preamble.settings == {1: 0, 3: WINDOW_MAX, 4: WINDOW_MAX}
        window = wire.frame()
        assert isinstance(window, WindowUpdateFrame)
        assert (window.stream_id, window.window_increment) == (0, WINDOW_MAX - 65535)
        assert wire.until(SettingsFrame).flags == {"ACK"}
        wire.send(SettingsFrame(0, flags=["ACK"]).serialize())
        wire.send(PingFrame(0, b"87654321", flags=["ACK"]).serialize())
        wire.send(PingFrame(0, b"12345678").serialize())
        pong = wire.frame()
        assert isinstance(pong, PingFrame)
        assert (pong.flags, pong.opaque_data) == ({"ACK"}, b"12345678")


@pytest.mark.asyncio
@pytest.mark.parametrize("begin", [BEGUN, SPENT], ids=["running", "ended"])
async def test_windows_are_replenished(begin: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """By all that came, padding too; the connection's also by data of calls that are over."""
    monkeypatch.setattr(http2_server, "REPLENISH_BYTES", 100_000)
    fed = Fed()
    await fed.feed([HELLO, begin])
    fed.sink.written.clear()
    frame = raw(0, 8, 1, bytes([255]) + message(b"x" * 1000) + bytes(255))
    size = len(frame) - 9
    await fed.feed([frame] * 1000)
    given = {0: 0, 1: 0}
    for one in frames_of(fed, WindowUpdateFrame):
        given[one.stream_id] += one.window_increment
    assert 1000 * size - 100_000 <= given[0] <= 1000 * size + 100
    if begin is SPENT:
        assert given[1] == 0
    else:
        assert 1000 * size - 100_000 <= given[1] <= 1000 * size
    fed.lose()


def frames_of(fed: Fed, kind: type[Frame]) -> list[Frame]:
    found, rest = [], bytes(fed.sink.written)
    while rest:
        one, rest = first_frame(rest)
        assert one is not None
        found.append(one)
    fed.sink.written.clear()
    return [one for one in found if isinstance(one, kind)]


@pytest.mark.asyncio
async def test_a_connection_that_is_made_after_the_close() -> None:
    """Accepted just before, it is closed at once, with a GOAWAY."""
    server = Http2Server(lambda _call: pytest.fail("a call"))
    await server.close(0)
    fed = Fed(server)
    await fed.feed([])
    assert fed.sink.is_closed
    assert frames_of(fed, GoAwayFrame)
    fed.lose()
