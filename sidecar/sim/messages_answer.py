"""The bytes of an Anthropic message: one JSON object, or named events, as vLLM 0.33 has them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sidecar.sim.answer import dump, named_event
from sidecar.sim.api_error import ApiError
from sidecar.sim.choice_run import ChoiceRun, Step
from sidecar.sim.model_request import ModelRequest

_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def error_of(error: ApiError) -> dict[str, Any]:
    """An error in Anthropic's shape."""
    default = "api_error" if error.status >= 500 else "invalid_request_error"
    kind = _ERROR_TYPES.get(error.status, default)
    return {"type": "error", "error": {"type": kind, "message": error.message}}


class MessagesAnswer:
    """Serialises one request's answer."""

    def __init__(self, asked: ModelRequest, request_id: str) -> None:
        self._asked = asked
        self._id = "chatcmpl-" + request_id
        self._is_open = False

    def opening(self) -> list[bytes]:
        """The message, empty."""
        message = {**self._message([], None, None), "usage": self._usage(0)}
        return [_event("message_start", message=message)]

    def token_parts(self, _index: int) -> None:
        """Blocks open with their first text, so no event is a mere token."""

    def step(self, _index: int, run: ChoiceRun, step: Step) -> bytes:
        """A delta, after the event that opens its block."""
        call, delta = run.call, step.text if run.call is None else step.token.argument
        events = b""
        if not self._is_open and (call is not None or delta):
            self._is_open = True
            block: dict[str, Any] = {"type": "text", "text": ""}
            if call is not None:
                block = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
            events = _event("content_block_start", index=0, content_block=block)
        if delta:
            is_text = call is None
            shown = {"type": "text_delta", "text": delta}
            if not is_text:
                shown = {"type": "input_json_delta", "partial_json": delta}
            events += _event("content_block_delta", index=0, delta=shown)
        return events

    def closing(self, runs: Sequence[ChoiceRun], completion_tokens: int) -> list[bytes]:
        """The block's end, why the message ended, and its end."""
        reason, sequence = _stop(runs[0])
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        return [
            *([_event("content_block_stop", index=0)] if self._is_open else []),
            _event("message_delta", delta=delta, usage=self._usage(completion_tokens)),
            _event("message_stop"),
        ]

    def failure(self, error: ApiError) -> bytes:
        """The block's end and an event of the error; the stream ends cleanly."""
        stop = _event("content_block_stop", index=0) if self._is_open else b""
        return stop + named_event("error", error_of(error))

    def whole(
        self, runs: Sequence[ChoiceRun], kv_transfer_params: Mapping[str, Any] | None
    ) -> bytes:
        """The answer that is not streamed; nulls are left out."""
        run = runs[0]
        reason, sequence = _stop(run)
        answer = {
            **self._message([self._block(run)], reason, sequence),
            "usage": self._usage(run.count),
            "kv_transfer_params": kv_transfer_params,
        }
        return dump({key: value for key, value in answer.items() if value is not None})

    def _block(self, run: ChoiceRun) -> dict[str, Any]:
        if run.call is None:
            return {"type": "text", "text": run.text}
        return {
            "type": "tool_use",
            "id": run.call.id,
            "name": run.call.name,
            "input": _input(run) or {},
        }

    def _message(
        self, content: list[dict[str, Any]], reason: str | None, sequence: str | None
    ) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "content": content,
            "model": self._asked.model,
            "stop_reason": reason,
            "stop_sequence": sequence,
        }

    def _usage(self, completion_tokens: int) -> dict[str, int]:
        return {
            "input_tokens": self._asked.prompt_tokens,
            "output_tokens": completion_tokens,
        }


def _input(run: ChoiceRun) -> dict[str, Any] | None:
    """The arguments of a call; None: they were cut short."""
    try:
        found: dict[str, Any] = json.loads("".join(token.argument for token in run.tokens))
    except ValueError:
        return None
    return found


def _stop(run: ChoiceRun) -> tuple[str, str | None]:
    if run.finish == "length":
        return "max_tokens", None
    if run.call is not None and _input(run) is not None:
        return "tool_use", None
    if isinstance(run.stop_reason, str):
        return "stop_sequence", run.stop_reason
    return ("tool_use" if run.call is not None else "end_turn"), None


def _event(name: str, /, **fields: Any) -> bytes:
    return named_event(name, {"type": name, **fields})
