"""The load generator believes an answer only if every byte of it is right."""

import json

import pytest

from tests.bench.streamed_answer import (
    BrokenAnswerError,
    IncomingAnswer,
    read_answer,
    read_completion,
)

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
REFUSAL = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 2\r\nx-pd-error: draining\r\n\r\n{}"


def event(text: str) -> bytes:
    return b"data: " + json.dumps({"choices": [{"text": text}]}).encode() + b"\n\n"


def chunked(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (*parts, b""))


WHOLE = HEAD + chunked(event("one"), event(" two"), b"data: [DONE]\n\n")


def test_a_whole_stream_is_read_to_its_text() -> None:
    """Two token events and [DONE]."""
    completion = read_completion(read_answer(WHOLE).body)
    assert (completion.text, completion.tokens) == ("one two", 2)


@pytest.mark.parametrize("whole", [WHOLE, REFUSAL])
def test_the_end_is_seen_with_the_last_byte(whole: bytes) -> None:
    """Byte by byte: not whole before the last one, whole with it."""
    incoming = IncomingAnswer()
    seen = [incoming.feed(whole[i : i + 1]) for i in range(len(whole))]
    assert seen == [False] * (len(whole) - 1) + [True]


@pytest.mark.parametrize("cut", [1, 2, 5, 20, len(WHOLE) - 10])
def test_a_cut_answer_is_broken(cut: int) -> None:
    """Whatever is missing at the end."""
    with pytest.raises(BrokenAnswerError):
        read_answer(WHOLE[:-cut])


def test_bytes_after_the_answer_are_a_fault() -> None:
    """One request has one answer."""
    with pytest.raises(BrokenAnswerError, match="follow"):
        read_answer(WHOLE + b"x")


@pytest.mark.parametrize(
    "body",
    [
        event("one"),
        event("one") + b"data: [DONE]",
        event("one") + b"data: [DONE]\n\n" * 2,
        b"data: [DONE]\n\n" + event("one"),
        b'data: {"error": {}}\n\ndata: [DONE]\n\n',
        b": comment\n\ndata: [DONE]\n\n",
        b"",
    ],
)
def test_a_stream_that_is_not_tokens_and_one_done_is_broken(body: bytes) -> None:
    """No [DONE], two of them, one too early, an error, anything else."""
    with pytest.raises(BrokenAnswerError):
        read_completion(body)


def test_a_refusal_keeps_its_status_and_reason() -> None:
    """So that the table can name it."""
    answer = read_answer(REFUSAL)
    assert (answer.status, answer.headers["x-pd-error"]) == (503, "draining")
