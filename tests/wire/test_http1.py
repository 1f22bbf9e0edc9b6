"""HTTP/1.1 of the prefill legs: what is an answer, when it is whole, and what may follow it."""

import gc
import weakref

import pytest

from sidecar.wire.http1 import (
    HEAD_MAX_BYTES,
    Answer,
    AnswerReader,
    BrokenAnswer,
    for_the_client,
    post_head,
)

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


def read(*parts: bytes, is_ended: bool = False) -> tuple[Answer | None, list[int]]:
    """The answer as far as `parts` make one, and the statuses that were told."""
    statuses: list[int] = []
    reader = AnswerReader(statuses.append)
    for part in parts:
        if reader.answer is None:
            reader.feed(part)
    if reader.answer is None and is_ended:
        return reader.end(), statuses
    return reader.answer, statuses


def parts_of(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]


@pytest.mark.parametrize(
    ("said", "status", "body", "is_kept"),
    [
        (OK, 200, b"ok", True),
        (OK.replace(b"OK\r\n", b"\r\n"), 200, b"ok", True),
        (OK.replace(b"200 OK", b"200"), 200, b"ok", True),
        (b"\r\n" + OK, 200, b"ok", True),
        (b"HTTP/1.0 200 OK\r\ncontent-length: 1\r\n\r\nx", 200, b"x", False),
        (b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 0\r\n\r\n", 200, b"", True),
        (b"HTTP/1.1 400 Bad\r\nConnection: Close\r\nContent-Length: 0\r\n\r\n", 400, b"", False),
        (
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
            b"1;a=b\r\na\r\n2\r\nbc\r\n0\r\nx-late: 1\r\n\r\n",
            200,
            b"abc",
            True,
        ),
        (b"HTTP/1.1 204 None\r\n\r\n", 204, b"", True),
        (b"HTTP/1.1 304 Same\r\ncontent-length: 9\r\n\r\n", 304, b"", True),
        (
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nlink: x\r\n\r\n" + OK,
            200,
            b"ok",
            True,
        ),
    ],
)  # fmt: skip
def test_an_answer_is_whole_at_its_end(
    said: bytes, status: int, body: bytes, is_kept: bool
) -> None:
    """However it is cut; its status is told once, and neither trailers nor hints are headers."""
    for cut in ([said], parts_of(said)):
        answer, statuses = read(*cut)
        assert answer is not None
        assert (answer.status, b"".join(answer.body), answer.is_kept) == (status, body, is_kept)
        assert statuses == [status]
        assert not {name for name, _ in answer.headers} & {b"x-late", b"link"}
        assert read(said[:-1])[0] is None


@pytest.mark.parametrize(
    "more",
    [OK, b"HTTP/1.1 500 No\r\nx: y\r\n", b"HTT", b"bye", b"\0"],
    ids=["an answer", "half a one", "its begin", "garbage", "a NUL"],
)
@pytest.mark.parametrize("is_closed", [False, True], ids=["", "close"])
def test_what_follows_an_answer_spoils_the_connection_only(more: bytes, is_closed: bool) -> None:
    """Nothing of it is in the answer, nor is its status told."""
    said = OK.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n") if is_closed else OK
    answer, statuses = read(said + more)
    assert answer is not None
    assert (answer.status, answer.body, answer.is_kept) == (200, [b"ok"], False)
    assert statuses == [200]
    assert b"x" not in dict(answer.headers)


def test_without_a_length_it_ends_with_the_connection() -> None:
    """Which cannot be used again, then; with one, or before its headers are there, it is broken."""
    said = b"HTTP/1.1 200 OK\r\n\r\nab"
    for cut in ([said], parts_of(said)):
        answer, _ = read(*cut, is_ended=True)
        assert answer is not None
        assert (b"".join(answer.body), answer.is_kept) == (b"ab", False)
    chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n"
    hints = b"HTTP/1.1 100 Continue\r\n\r\n"
    for early in (b"", said[:12], said[:18], OK[:-1], chunked, hints):
        with pytest.raises(BrokenAnswer, match="ended"):
            read(early, is_ended=True)


@pytest.mark.parametrize(
    "said",
    [
        b"garbage\r\n\r\n",
        b"HTTP/1.1 099 Low\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 600 High\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 1200 Long\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n" + OK,
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nx\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
        b"HTTP/1.1 200 OK\r\nx: a\0b\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\na b: c\r\ncontent-length: 0\r\n\r\n",
        b"\x16\x03\x01\x02\0",
    ],
)
def test_what_is_no_answer_is_broken(said: bytes) -> None:
    """However it is cut; a length that is told twice is nobody's to choose."""
    for cut in ([said], parts_of(said)):
        with pytest.raises(BrokenAnswer):
            read(*cut)


PIECE = 64 << 10


@pytest.mark.parametrize(
    ("before", "piece"),
    [
        (b"HTTP/1.1 200 ", b"a" * PIECE),
        (b"HTTP/1.1 200 OK\r\nx: ", b"a" * PIECE),
        (b"HTTP/1.1 200 OK\r\n", b"a: b\r\n" * (PIECE // 6)),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * (PIECE // 25)),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1;", b"a" * PIECE),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\nx: ", b"a" * PIECE),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n", b"a: b\r\n" * 9999),
    ],
    ids=["reason", "header", "headers", "continue", "extension", "trailer", "trailers"],
)
def test_headers_that_do_not_end_are_broken_off(before: bytes, piece: bytes) -> None:
    """At the limit: an engine in error must not fill the memory, nor the time, of a worker."""
    reader = AnswerReader(lambda _: None)
    reader.feed(before)
    for _ in range(HEAD_MAX_BYTES // PIECE - 2):
        reader.feed(piece)
    with pytest.raises(BrokenAnswer):
        feed_often(reader, piece, 6)


def feed_often(reader: AnswerReader, piece: bytes, times: int) -> None:
    for _ in range(times):
        reader.feed(piece)


def test_headers_in_one_piece_have_the_same_limit() -> None:
    """And those below it pass, in one piece or many; a body has none."""
    large = b"HTTP/1.1 200 OK\r\nx: %s\r\ncontent-length: 2\r\n\r\nok"
    with pytest.raises(BrokenAnswer):
        read(large % (b"a" * HEAD_MAX_BYTES))
    fits = large % (b"a" * (HEAD_MAX_BYTES - 99))
    for cut in ([fits], [fits[at : at + PIECE] for at in range(0, len(fits), PIECE)]):
        assert read(*cut)[0] is not None
    body = b"a" * (4 * HEAD_MAX_BYTES)
    said = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
    for size in (len(said), PIECE):
        answer, _ = read(*(said[at : at + size] for at in range(0, len(said), size)))
        assert answer is not None
        assert b"".join(answer.body) == body


def test_a_reader_that_was_stopped_is_freed_at_once() -> None:
    """With the answer and whatever `on_head` knows: not when the collector comes by."""

    class Leg:
        def on_head(self, _status: int) -> None: ...

    for said in (OK, OK[:-1], b""):
        leg = Leg()
        gc.disable()
        try:
            reader = AnswerReader(leg.on_head)
            reader.feed(said)
            reader.stop()
            is_there = weakref.ref(leg)
            del reader, leg
            assert is_there() is None
        finally:
            gc.enable()


def test_the_clients_headers_go_on_and_those_of_the_connection_do_not() -> None:
    """Values to the byte, several of one name joined, spaces around them gone."""
    (answer, _) = read(
        b"HTTP/1.1 200 OK\r\nVary: a\r\nX-Name: \xc3\xa9 \t\r\nServer: s\r\nvary: b\r\n"
        b"Date: d\r\nKeep-Alive: 5\r\nX-Request-Id: theirs\r\nempty:\r\ncontent-length: 0\r\n\r\n"
    )
    assert answer is not None
    said = for_the_client(answer.headers)
    assert said == {"vary": "a, b", "x-name": "\xc3\xa9", "empty": ""}
    assert said["x-name"].encode("latin-1") == b"\xc3\xa9"


def test_the_head_of_a_post() -> None:
    """What was given, to the byte, and the two headers that HTTP wants."""
    assert post_head("/v1/x?a=b", "[::1]:80", {"x-a": "1 é", "b": ""}, 7) == (
        b"POST /v1/x?a=b HTTP/1.1\r\nhost: [::1]:80\r\ncontent-length: 7\r\n"
        b"x-a: 1 \xe9\r\nb: \r\n\r\n"
    )


@pytest.mark.parametrize(
    "text", ["a\r\nb: c", "a\n", "\ra", "a\0", "a\r\n\r\nPOST / HTTP/1.1\r\n", "\u20ac", "\ud800"]
)
def test_what_would_end_a_line_is_refused(text: str) -> None:
    """Wherever it stands; and what has no byte in a header."""
    for path, host, headers in (
        ("/x", "h", {"a": text}), ("/x", "h", {text: "a"}), ("/x", text, {}), (text, "h", {}),
    ):  # fmt: skip
        with pytest.raises(ValueError):
            post_head(path, host, headers, 0)
