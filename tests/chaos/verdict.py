"""What became of a request: one of the ends that design §6 allows, or a violation.

Pure. Allowed are the right answer; a clear error; a stream that is visibly cut and right so far;
and no answer at all while Envoy is down. In a calm phase a good request has the right answer.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tests.chaos.question import Question
from tests.chaos.stream import Said, StreamError, read_stream

End = Literal["clean", "cut", "none", "left", "hang"]
"""How the transfer ended: its framing complete; broken after the head; broken or refused before it;
by the client itself; not within the limit."""

INJECTED_STATUSES = (409, 429, 500, 503)
"""what the harness asks engines to answer"""
REASONS = {
    503: (
        "no_prefill_instance",
        "no_decode_instance",
        "no_worker",
        "prefill_refused",
        "decode_refused",
        "decode_reset",
        "instance_gone",
    ),
    502: (
        "prefill_refused",
        "prefill_unreachable",
        "prefill_error",
        "prefill_reset",
        "prefill_without_kv",
    ),
    504: ("prefill_timeout", "decode_timeout"),
}
"""What an engine, a worker or a pool that is away may cause. Not here: `refused` (Envoy could not
say why), `internal`, `draining` (nobody drains), `overloaded` and `worker_timeout` (nothing is near
those limits)."""
ROUTER_FAULTS = ("EngineCore", "with kv_transfer_params", "on wrong role", "wrong_", "no_session")
"""An engine that says one of these was sent what no router may send, whoever was killed."""


@dataclass(frozen=True, slots=True)
class Heard:
    """What a client saw. `status` 0: no head came. Header names are in lower case."""

    end: End
    status: int = 0
    headers: Mapping[str, str] | None = None
    body: bytes = b""
    fault: str = ""
    """how the transfer broke, in the client library's words"""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`kind` is the row in the table of outcomes; `violation` says what is wrong, if anything."""

    kind: str
    violation: str = ""


def judge(question: Question, heard: Heard, *, is_edge_down: bool, is_calm: bool) -> Verdict:
    """The verdict. `is_edge_down`: Envoy was down at some moment of the request.

    `is_calm`: nothing was broken, so that nothing is excused.
    """
    verdict = _judge(question, heard, is_edge_down)
    if verdict.kind == "cut early" and not is_edge_down:
        return Verdict(verdict.kind, "a short answer was cut though Envoy lived")
    is_excuse = verdict.kind not in ("right", "left", "refused rightly")
    if is_calm and is_excuse and not verdict.violation:
        return Verdict(verdict.kind, "nothing was broken: only the right answer is right")
    return verdict


def _judge(question: Question, heard: Heard, is_edge_down: bool) -> Verdict:
    if heard.end == "hang":
        return Verdict("hang", "no end within the limit")
    if heard.status == 0:
        if heard.end == "left":
            return Verdict("left")
        if is_edge_down:
            return Verdict("no answer, Envoy down")
        return Verdict("no answer", f"no answer though Envoy lived: {heard.fault}")
    if heard.status >= 400:
        return _judge_error(question, heard)
    if not question.is_good:
        return Verdict("accepted", f"status {heard.status} in place of {question.refusal}")
    if heard.status != 200:
        return Verdict("odd status", f"status {heard.status}")
    if question.kind == "models":
        return _judge_models(heard)
    if question.is_streamed:
        return _judge_stream(question, heard)
    return _judge_whole(question, heard)


# --- errors


def _judge_error(question: Question, heard: Heard) -> Verdict:
    status = heard.status
    if heard.end == "left":
        return Verdict("left")
    if heard.end == "cut":
        return Verdict("cut early")
    headers = heard.headers or {}
    error = _error_of(heard)
    if isinstance(error, str):
        return Verdict(f"unclear {status}", error)
    reason = headers.get("x-pd-error")
    if isinstance(error["code"], str):
        return _judge_own_error(question, status, reason, error["code"])
    return _judge_engine_error(question, status, reason, error)


def _error_of(heard: Heard) -> dict[str, Any] | str:
    """The `error` object in OpenAI's shape, or what is wrong with it."""
    kind = (heard.headers or {}).get("content-type", "")
    if kind.partition(";")[0].strip() != "application/json":
        return f"an error of content type {kind!r}"
    try:
        body = json.loads(heard.body)
    except ValueError:
        return "an error whose body is not JSON"
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict) or set(error) != {"message", "type", "param", "code"}:
        return "an error without OpenAI's shape"
    if not error["message"] or not isinstance(error["message"], str):
        return "an error without a message"
    if not isinstance(error["code"], str | int):
        return "an error without a code"
    return error


def _judge_own_error(question: Question, status: int, reason: str | None, code: str) -> Verdict:
    """The sidecar's or Envoy's: its code is the reason."""
    kind = f"{status} {reason}"
    if reason != code:
        return Verdict(kind, f"x-pd-error is {reason!r}, the code {code!r}")
    if question.refusal is not None and status == question.refusal:
        return Verdict("refused rightly")
    if status < 500:
        return Verdict(kind, f"a good request was refused with {status}")
    if question.kind == "unknown path":
        return Verdict(kind, "Envoy alone answers unknown paths")
    if reason not in REASONS.get(status, ()):
        return Verdict(kind, f"nothing that happens here may be answered {status} {reason}")
    return Verdict(kind)


def _judge_engine_error(
    question: Question, status: int, reason: str | None, error: Mapping[str, Any]
) -> Verdict:
    kind = f"{status} engine's"
    if error["code"] != status:
        return Verdict(kind, f"an engine's code {error['code']} with another status")
    if reason not in (None, "prefill_rejected"):
        return Verdict(kind, f"an engine's error with x-pd-error {reason!r}")
    if any(words in error["message"] for words in ROUTER_FAULTS):
        return Verdict(kind, f"the engine blames the router: {error['message']}")
    if question.refusal == status:
        return Verdict("refused rightly")
    if status < 500 and status not in INJECTED_STATUSES:
        return Verdict(kind, f"a request was refused with {status}: {error['message']}")
    return Verdict(kind)


# --- answers


def _judge_models(heard: Heard) -> Verdict:
    if heard.end == "cut":
        return Verdict("cut early")
    try:
        names = [one["id"] for one in json.loads(heard.body)["data"]]
    except (ValueError, LookupError, TypeError):
        return Verdict("wrong", "not a list of models")
    if any(name != "sim-model" for name in names):
        return Verdict("wrong", f"models {names}")
    return Verdict("right") if names else Verdict("no model known")


def _judge_stream(question: Question, heard: Heard) -> Verdict:
    if not (heard.headers or {}).get("content-type", "").startswith("text/event-stream"):
        return Verdict("wrong", "a stream of another content type")
    try:
        said = read_stream(heard.body, is_whole=heard.end == "clean")
    except StreamError as error:
        return Verdict("wrong", f"the stream: {error}")
    wrong = _wrong_text(question.texts, said, is_whole=heard.end == "clean" and not said.error)
    if wrong:
        return Verdict("wrong", wrong)
    if said.error and any(words in said.error for words in ROUTER_FAULTS):
        return Verdict("error event", f"the engine blames the router: {said.error}")
    if heard.end == "left":
        return Verdict("left")
    if heard.end == "cut":
        return Verdict("cut after its [DONE]" if said.dones else "cut stream")
    if said.dones != 1:
        return Verdict("wrong", f"a clean end with {said.dones} times [DONE]")
    return Verdict("error event") if said.error else Verdict("right")


def _wrong_text(expected: tuple[str, ...], said: Said, *, is_whole: bool) -> str:
    if not set(said.texts) <= set(range(len(expected))):
        return f"choices {sorted(said.texts)} of {len(expected)}"
    for index, right in enumerate(expected):
        text = said.texts.get(index, "")
        if not right.startswith(text):
            return f"choice {index} is {text!r}, which {right!r} does not start with"
        if is_whole and text != right:
            return f"choice {index} ends cleanly at {len(text)} of {len(right)} characters"
    return ""


def _judge_whole(question: Question, heard: Heard) -> Verdict:
    if heard.end == "left":
        return Verdict("left")
    if heard.end == "cut":
        return Verdict("cut whole answer")
    if not (heard.headers or {}).get("content-type", "").startswith("application/json"):
        return Verdict("wrong", "an answer of another content type")
    try:
        choices = json.loads(heard.body)["choices"]
        texts = tuple(
            one["text"] if "text" in one else one["message"]["content"]
            for one in sorted(choices, key=lambda one: one["index"])
        )
    except (ValueError, LookupError, TypeError):
        return Verdict("wrong", "not a completion")
    if texts != question.texts:
        return Verdict("wrong", f"the texts are {texts}, not {question.texts}")
    return Verdict("right")
