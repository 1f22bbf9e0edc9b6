"""What every API's answer can do, and the bytes that they have in common."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from sidecar.sim.api_error import ApiError
from sidecar.sim.choice_run import ChoiceRun, Step

DONE = b"data: [DONE]\n\n"


class Answer(Protocol):
    """One request's answer as bytes, whole or as events; `index` numbers the choices."""

    def opening(self) -> list[bytes]:
        """Events before the first token."""
        ...

    def token_parts(self, index: int, /) -> tuple[bytes, bytes, bytes] | None:
        """(before a token, after it, after the last), where an event is a token and no more.

        The token must need no JSON escape. None: this API's events are made by `step` alone.
        """
        ...

    def step(self, index: int, run: ChoiceRun, step: Step, /) -> bytes:
        """The events of one token; may be none."""
        ...

    def closing(self, runs: Sequence[ChoiceRun], completion_tokens: int, /) -> list[bytes]:
        """Events after the last token."""
        ...

    def failure(self, error: ApiError, /) -> bytes | None:
        """What ends a stream that fails; None: the connection is cut, as vLLM does there."""
        ...

    def whole(
        self, runs: Sequence[ChoiceRun], kv_transfer_params: Mapping[str, Any] | None
    ) -> bytes:
        """The answer that is not streamed, of runs that have finished."""
        ...


def dump(value: Any) -> bytes:
    """JSON without blanks."""
    return json.dumps(value, separators=(",", ":")).encode()


def data_event(value: Any) -> bytes:
    """A server-sent event of OpenAI's kind."""
    return b"data: " + dump(value) + b"\n\n"


def named_event(name: str, value: Any) -> bytes:
    """One with a name, as Responses and Messages have it."""
    return b"event: " + name.encode() + b"\ndata: " + dump(value) + b"\n\n"


def failure_and_done(error: ApiError) -> bytes:
    """An error after the headers have gone, as OpenAI's APIs have it in vLLM: an event, and the
    stream ends cleanly."""
    return b"data: " + error.body() + b"\n\n" + DONE


def usage_and_done(head: Mapping[str, Any], told: Mapping[str, Any] | None) -> list[bytes]:
    """The last events: one with what is told of the whole, its usage first, and the end."""
    return [*([data_event({**head, "choices": [], **told})] if told else []), DONE]


def counts_of(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    """OpenAI's usage, as streams have it: nothing that is null."""
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
    }


def usage_of(prompt_tokens: int, completion_tokens: int) -> dict[str, Any]:
    """OpenAI's usage, whole."""
    counts = counts_of(prompt_tokens, completion_tokens)
    return {**counts, "prompt_tokens_details": None, "completion_tokens_details": None}
