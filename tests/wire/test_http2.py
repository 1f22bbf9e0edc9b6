"""HTTP/2 frames and gRPC's messages as values, against the libraries `hyperframe` and `hpack`."""

import pytest
from hpack import Decoder
from hyperframe.frame import (
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)
from hypothesis import given
from hypothesis import strategies as st

from sidecar.wire import http2

STREAMS = st.integers(1, http2.STREAM_MASK)
CODES = st.integers(0, 13)


def parsed(data: bytes) -> Frame:
    """One frame, and nothing behind it."""
    frame, length = Frame.parse_frame_header(memoryview(data[:9]))
    assert len(data) == 9 + length
    frame.parse_body(memoryview(data[9:]))
    return frame


@given(STREAMS, CODES, st.integers(1, http2.WINDOW_MAX), st.integers(0, http2.WINDOW_MAX))
def test_frames_that_we_send(stream: int, code: int, size: int, value: int) -> None:
    """Each is read as what it is."""
    reset = parsed(http2.reset(stream, code))
    assert isinstance(reset, RstStreamFrame)
    assert (reset.stream_id, reset.error_code) == (stream, code)
    window = parsed(http2.window_update(stream, size))
    assert isinstance(window, WindowUpdateFrame)
    assert (window.stream_id, window.window_increment) == (stream, size)
    goaway = parsed(http2.goaway(stream, code))
    assert isinstance(goaway, GoAwayFrame)
    assert (goaway.last_stream_id, goaway.error_code) == (stream, code)
    settings = parsed(http2.settings({http2.INITIAL_WINDOW_SIZE: value, 0x99: value}))
    assert isinstance(settings, SettingsFrame)
    assert settings.settings == {4: value, 0x99: value}


@given(STREAMS, st.sampled_from([0, 1, 255, 256, 65535, 65536, 65537, http2.FRAME_LIMIT]))
def test_a_frame_of_any_length(stream: int, size: int) -> None:
    """Its length has 24 bits."""
    data = http2.frame(http2.DATA, http2.END_STREAM, stream, bytes(size))
    frame, length = Frame.parse_frame_header(memoryview(data[:9]))
    assert isinstance(frame, DataFrame)
    assert (frame.stream_id, length, frame.flags) == (stream, size, {"END_STREAM"})


@pytest.mark.parametrize("prefix", [b"", http2.NO_TABLE], ids=["later", "first"])
def test_header_blocks(prefix: bytes) -> None:
    """They say what gRPC wants, and leave the client's table empty."""
    decoder = Decoder()
    response = decoder.decode(prefix + http2.RESPONSE)
    assert response == [(":status", "200"), ("content-type", "application/grpc")]
    assert decoder.decode(http2.TRAILERS_OK) == [("grpc-status", "0")]
    both = decoder.decode(http2.RESPONSE + http2.TRAILERS_OK)
    assert both == [*response, ("grpc-status", "0")]
    assert not decoder.header_table.dynamic_entries
    assert decoder.header_table.maxsize == (0 if prefix else 4096)


@given(st.dictionaries(st.integers(6, 255), st.integers(0, (1 << 32) - 1), max_size=5))
def test_settings_there_and_back(values: dict[int, int]) -> None:
    """Unknown ones are kept as they are."""
    assert http2.read_settings(SettingsFrame(0, values).serialize()[9:]) == values


@given(st.binary(max_size=40), st.integers(0, 255))
def test_padding(content: bytes, size: int) -> None:
    """What is left is what was padded."""
    frame = DataFrame(1, content, flags=["PADDED"])
    frame.pad_length = size
    assert http2.unpadded(frame.serialize()[9:], http2.PADDED) == content
    assert http2.unpadded(content, 0) == content


@given(st.binary(max_size=20), st.integers(0, 255), st.booleans())
def test_headers_with_padding_and_priority(block: bytes, size: int, has_priority: bool) -> None:
    """Whatever the library makes is passed."""
    flags = ["END_HEADERS", "PADDED", *(["PRIORITY"] if has_priority else [])]
    frame = HeadersFrame(1, block, flags=flags)
    frame.pad_length = size
    (found,) = http2.Frames().take(http2.PREFACE + frame.serialize())
    kind, _, stream, _, begin, end = found
    assert (kind, stream, end - begin) == (http2.HEADERS, 1, frame.body_len)


MESSAGES = st.lists(st.binary(max_size=30), max_size=8)


@given(MESSAGES, st.data())
def test_messages_however_they_are_cut(sent: list[bytes], data: st.DataObject) -> None:
    """Each comes with the piece that makes it whole, in order, and as often as it was sent."""
    stream = b"".join(http2.MESSAGE_HEAD.pack(0, len(one)) + one for one in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    reader, got = http2.Messages(), []
    before = data.draw(st.binary(max_size=5))  # of the read that the piece lies in
    for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        piece = before + stream[begin:end] + b"behind"
        got += reader.take(piece, len(before), len(before) + end - begin)
        whole = 0
        for number, one in enumerate(sent):
            whole += 5 + len(one)
            assert (len(got) > number) == (whole <= end)
    assert got == sent


@given(MESSAGES, st.integers(1, 255))
def test_a_compressed_message(sent: list[bytes], flag: int) -> None:
    """It is refused by its first five bytes."""
    stream = b"".join(http2.MESSAGE_HEAD.pack(0, len(one)) + one for one in sent)
    stream += http2.MESSAGE_HEAD.pack(flag, 1000)
    with pytest.raises(http2.ProtocolError):
        http2.Messages().take(stream, 0, len(stream))
    http2.Messages().take(stream, 0, len(stream) - 1)


@pytest.mark.parametrize(("window", "size"), [(0, http2.WINDOW_MAX), (-5, http2.WINDOW_MAX)])
def test_a_window_up_to_the_most(window: int, size: int) -> None:
    """And no byte more."""
    assert http2.widened(window, size) == window + size
    with pytest.raises(http2.ProtocolError) as caught:
        http2.widened(1, size)
    assert caught.value.code == http2.FLOW_CONTROL_ERROR
