"""Answers of HTTP/1.1, as a prefill engine may send them."""

import zlib

from sidecar.wire.http1 import Answer, AnswerReader, BrokenAnswer, for_the_client

Outcome = tuple[str, object, list[int]]


def check_http1(data: bytes) -> None:
    """The same is read however it is cut: a whole answer, one that ends with its connection, or
    none. What is read says what it must: a status is told once, and headers can go on."""
    whole = _outcome([data])
    size = 1 + zlib.crc32(data) % max(1, min(len(data), 64))
    for step in {1, size}:
        parts = [data[at : at + step] for at in range(0, len(data), step)]
        assert _outcome(parts) == whole, step


def _outcome(parts: list[bytes]) -> Outcome:
    statuses: list[int] = []
    reader = AnswerReader(statuses.append)
    try:
        for part in parts:
            reader.feed(part)
            if reader.answer is not None:
                break
        answer = reader.answer if reader.answer is not None else reader.end()
    except BrokenAnswer:
        assert reader.answer is None, "what was whole is broken"
        return "broken", None, statuses
    finally:
        reader.stop()
    assert statuses == [answer.status]
    assert 200 <= answer.status <= 599
    assert answer.is_kept is False or reader.answer is answer
    return "answer", _said(answer), statuses


def _said(answer: Answer) -> object:
    """`is_kept` is not in it: what follows in a piece of its own is seen by the connection."""
    for name, value in for_the_client(answer.headers).items():
        assert name == name.lower()
        assert not {"\r", "\n", "\0"} & {*name, *value}
    return answer.status, answer.headers, b"".join(answer.body)


def seeds() -> tuple[bytes, ...]:
    ok = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
    chunks = b"1;a=b\r\na\r\n2\r\nbc\r\n0\r\nx-late: 1\r\n\r\n"
    return (
        ok,
        ok + ok,
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nlink: x\r\n\r\n" + ok,
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + chunks,
        b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\nvary: a\r\nvary: b \r\n\r\nuntil it ends",
        b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 429 No\r\nretry-after: 7\r\nconnection: close\r\ncontent-length: 0\r\n\r\nx",
        b"HTTP/1.1 101 Up\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n" + ok,
        b"HTTP/1.1 304 Same\r\ncontent-length: 9\r\n\r\n",
    )


WORDS = (
    "HTTP/1.1 200 OK\r\n", "HTTP/1.0 ", "100 Continue", "101 Up", "204 ", "304 ", "600 ", "\r\n",
    "\r\n\r\n", "content-length: ", "transfer-encoding: ", "chunked", "gzip", "connection: ",
    "close", "keep-alive", "upgrade: x", "0\r\n\r\n", "ffffffffffffffff", ";ext", "-1", "+1",
    "proxy-connection: ", "trailer: ",
)  # fmt: skip
