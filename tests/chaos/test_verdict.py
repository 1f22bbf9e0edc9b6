"""The oracle of a chaos run: no answer passes that is not right, no error that is not clear."""

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.chaos.question import Question, make_question
from tests.chaos.verdict import Heard, Verdict, judge

TEXT = "one two three"
STREAMED = Question(
    "q", "chat streamed", "POST", "/v1/chat/completions", b"{}", True, texts=(TEXT,)
)
WHOLE = Question("q", "completion whole", "POST", "/v1/completions", b"{}", texts=(TEXT,))
TWO = replace(WHOLE, texts=("one", "two"))
BAD = Question("q", "bad body", "POST", "/v1/completions", b"[", refusal=400)
UNKNOWN = Question("q", "unknown path", "POST", "/v1/nothing", b"", refusal=404)
JSON = {"content-type": "application/json"}
EVENTS = {"content-type": "text/event-stream; charset=utf-8"}
DONE = b"data: [DONE]\n\n"
HOW = ("streamed", "whole")


def event(text: str) -> bytes:
    return b"data: " + json.dumps({"choices": [{"index": 0, "text": text}]}).encode() + b"\n\n"


def error_event(message: str) -> bytes:
    return b"data: " + json.dumps({"error": {"message": message}}).encode() + b"\n\n"


def answer(*texts: str) -> bytes:
    choices = [{"index": i, "text": text} for i, text in enumerate(texts)]
    return json.dumps({"choices": choices}).encode()


def error(status: int, code: Any, message: str = "Sorry.", **headers: str) -> Heard:
    shape = {"message": message, "type": "some", "param": None, "code": code}
    body = json.dumps({"error": shape}).encode()
    return Heard("clean", status, {**JSON, **headers}, body)


def ours(status: int, reason: str) -> Heard:
    return error(status, reason, **{"x-pd-error": reason})


def stream(*events: bytes, end: Any = "clean", **headers: str) -> Heard:
    return Heard(end, 200, headers or EVENTS, b"".join(events))


def verdict(question: Question, heard: Heard, down: bool = False, calm: bool = False) -> Verdict:
    return judge(question, heard, is_edge_down=down, is_calm=calm)


@pytest.mark.parametrize(
    ("question", "heard", "kind"),
    [
        (STREAMED, stream(event("one two"), event(" three"), DONE), "right"),
        (STREAMED, stream(event("one two"), end="cut"), "cut stream"),
        (STREAMED, stream(event("one two"), b'data: {"ch', end="cut"), "cut stream"),
        (STREAMED, stream(end="cut"), "cut stream"),
        (STREAMED, stream(event("one two"), end="left"), "left"),
        (STREAMED, stream(error_event("KV load failed"), DONE), "error event"),
        (WHOLE, Heard("clean", 200, JSON, answer(TEXT)), "right"),
        (TWO, Heard("clean", 200, JSON, answer("one", "two")), "right"),
        (WHOLE, Heard("cut", 200, JSON, answer(TEXT)[:9]), "cut whole answer"),
        (WHOLE, ours(503, "no_worker"), "503 no_worker"),
        (WHOLE, ours(504, "decode_timeout"), "504 decode_timeout"),
        (WHOLE, error(500, 500), "500 engine's"),
        (WHOLE, error(429, 429), "429 engine's"),
        (WHOLE, error(429, 429, **{"x-pd-error": "prefill_rejected"}), "429 engine's"),
        (WHOLE, Heard("left"), "left"),
        (BAD, ours(400, "body_invalid"), "refused rightly"),
        (BAD, error(400, 400), "refused rightly"),
        (BAD, ours(503, "no_worker"), "503 no_worker"),
        (UNKNOWN, ours(404, "not_found"), "refused rightly"),
    ],
)
def test_every_end_that_the_table_allows_has_its_kind(
    question: Question, heard: Heard, kind: str
) -> None:
    """And none of them is a violation while things are broken."""
    assert verdict(question, heard) == Verdict(kind)


@pytest.mark.parametrize(
    ("question", "heard", "words"),
    [
        # Texts.
        (STREAMED, stream(event("one six"), DONE), "does not start with"),
        (STREAMED, stream(event("one six"), end="cut"), "does not start with"),
        (STREAMED, stream(event("one six"), end="left"), "does not start with"),
        (STREAMED, stream(event(TEXT + " four"), DONE), "does not start with"),
        (STREAMED, stream(event("one two"), DONE), "ends cleanly at 7 of 13"),
        (WHOLE, Heard("clean", 200, JSON, answer("one two")), "the texts are"),
        (TWO, Heard("clean", 200, JSON, answer("one")), "the texts are"),
        (TWO, Heard("clean", 200, JSON, answer("two", "one")), "the texts are"),
        (WHOLE, Heard("clean", 200, JSON, b"{}"), "not a completion"),
        (WHOLE, Heard("clean", 200, JSON, b""), "not a completion"),
        # Ends.
        (STREAMED, stream(event(TEXT)), "0 times [DONE]"),
        (STREAMED, stream(), "ends cleanly at 0"),
        (STREAMED, stream(event(TEXT), DONE, DONE), "an event after [DONE]"),
        (STREAMED, stream(event(TEXT), b"data: [DO"), "within an event"),
        (STREAMED, stream(b"<html></html>\n\n", DONE), "not an event"),
        (STREAMED, stream(event(TEXT), DONE, **JSON), "another content type"),
        (WHOLE, Heard("hang"), "no end within the limit"),
        (WHOLE, Heard("none", fault="reset"), "though Envoy lived: reset"),
        # Errors.
        (WHOLE, Heard("clean", 503, {"content-type": "text/html"}, b"<html>"), "content type"),
        (WHOLE, Heard("clean", 503, JSON, b"upstream connect error"), "not JSON"),
        (WHOLE, Heard("clean", 503, JSON, b'{"error": "no"}'), "without OpenAI's shape"),
        (WHOLE, error(503, "no_worker"), "x-pd-error is None"),
        (WHOLE, error(503, "no_worker", **{"x-pd-error": "draining"}), "the code 'no_worker'"),
        (WHOLE, ours(500, "internal"), "nothing that happens here"),
        (WHOLE, ours(502, "refused"), "nothing that happens here"),
        (WHOLE, ours(503, "draining"), "nothing that happens here"),
        (WHOLE, ours(400, "body_invalid"), "a good request was refused"),
        (WHOLE, error(400, 400), "a request was refused with 400"),
        (WHOLE, error(500, 503), "with another status"),
        (WHOLE, error(500, 500, "EngineCore encountered an issue"), "blames the router"),
        (WHOLE, error(500, 500, "KV load failed: wrong_rank"), "blames the router"),
        (WHOLE, error(500, 500, **{"x-pd-error": "internal"}), "with x-pd-error"),
        (WHOLE, Heard("cut", 503, JSON, b'{"er'), "a short answer was cut"),
        (STREAMED, stream(error_event("failed: wrong_blocks"), DONE), "blames the router"),
        (BAD, Heard("clean", 200, JSON, answer(TEXT)), "in place of 400"),
        (BAD, ours(413, "body_too_large"), "refused with 413"),
        (UNKNOWN, ours(503, "no_worker"), "Envoy alone answers"),
    ],
)
def test_everything_else_is_a_violation(question: Question, heard: Heard, words: str) -> None:
    """A wrong text, a clean end too early, a hang, an error that a client cannot read."""
    assert words in verdict(question, heard).violation


def test_no_answer_is_excused_by_a_dead_envoy_alone() -> None:
    """A connection refused while nobody listens is what it says; a hang never is."""
    assert verdict(WHOLE, Heard("none"), down=True) == Verdict("no answer, Envoy down")
    assert verdict(WHOLE, Heard("cut", 503, JSON, b""), down=True) == Verdict("cut early")
    assert verdict(WHOLE, Heard("hang"), down=True).violation


@pytest.mark.parametrize(
    "heard", [ours(503, "no_worker"), error(500, 500), Heard("cut", 200, JSON, b"{")]
)
def test_a_calm_phase_excuses_nothing(heard: Heard) -> None:
    """What is allowed under fire is a violation when nothing is broken."""
    assert not verdict(WHOLE, heard).violation
    assert verdict(WHOLE, heard, calm=True).violation
    assert not verdict(BAD, ours(400, "body_invalid"), calm=True).violation


def test_questions_come_from_the_seed_alone() -> None:
    """The same seed asks the same; another one something else."""
    asked = [make_question("READ/1", i) for i in range(300)]
    assert asked == [make_question("READ/1", i) for i in range(300)]
    assert asked != [make_question("READ/2", i) for i in range(300)]
    assert len({question.name for question in asked}) == 300


def test_the_load_is_mixed() -> None:
    """Every kind of request, every phase in which a client leaves, short prompts and long ones."""
    asked = [make_question("READ/1", i) for i in range(2000)]
    assert {q.kind for q in asked} == {
        "models",
        "bad body",
        "unknown path",
        *(f"{kind} {how}" for kind in ("completion", "chat", "aggregated") for how in HOW),
    }
    assert {q.leave.phase for q in asked if q.leave} == {"upload", "time", "bytes"}
    assert max(len(q.body) for q in asked) > 20_000 > 500 > min(len(q.body) for q in asked)
