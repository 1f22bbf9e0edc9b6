"""The bytes of a response: one JSON object, or vLLM's named events with their numbers."""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

from sidecar.sim.answer import dump, named_event
from sidecar.sim.api_error import ApiError
from sidecar.sim.choice_run import ChoiceRun, Step
from sidecar.sim.model_request import ModelRequest
from sidecar.sim.options import SimOptions


class ResponsesAnswer:
    """Serialises one request's answer. `given` is the client's body, `created` Unix seconds."""

    def __init__(
        self,
        asked: ModelRequest,
        given: Mapping[str, Any],
        request_id: str,
        created: int,
        engine: SimOptions,
    ) -> None:
        self._asked = asked
        self._engine = engine
        self._given = given
        self._id = request_id
        self._created = created
        self._shape = asked.logprob_shape
        self._number = 0
        self._is_open = False
        digest = blake2b(request_id.encode("utf-8", "replace"), digest_size=16).hexdigest()
        self._message_id, self._call_id = f"msg_{digest}", f"fc_{digest}"

    def opening(self) -> list[bytes]:
        """The response as it begins, twice."""
        begun = self._response("in_progress", [], None, None)
        return [
            self._event("response.created", response=begun),
            self._event("response.in_progress", response=begun),
        ]

    def token_parts(self, _index: int) -> None:
        """Every event has a number of its own."""

    def step(self, _index: int, run: ChoiceRun, step: Step) -> bytes:
        """A delta, after the events that open its item."""
        delta = step.text if run.call is None else step.token.argument
        if run.call is None and not delta:
            return b""
        opened = b"" if self._is_open else self._open(run)
        self._is_open = True
        if run.call is not None:
            if not delta:
                return opened
            name = "response.function_call_arguments.delta"
            return opened + self._event(name, item_id=self._call_id, output_index=0, delta=delta)
        logprobs = self._shape.chat([step.token], step.number) if self._shape else []
        return opened + self._event(
            "response.output_text.delta", **self._place(), delta=delta, logprobs=logprobs
        )

    def closing(self, runs: Sequence[ChoiceRun], _completion_tokens: int) -> list[bytes]:
        """What closes the item and the response; this API has no [DONE]."""
        run = runs[0]
        events = self._close(run) if self._is_open else []
        done = self._finished(run, None, self._items(run) if self._is_open else [])
        is_cut = run.finish == "length" and self._engine.release >= (0, 33)
        name = "response.incomplete" if is_cut else "response.completed"
        return [*events, self._event(name, response=done)]

    def failure(self, _error: ApiError) -> None:
        """vLLM has no event for it: its generator raises, and the connection is cut."""

    def whole(
        self, runs: Sequence[ChoiceRun], kv_transfer_params: Mapping[str, Any] | None
    ) -> bytes:
        """The answer that is not streamed."""
        return dump(self._finished(runs[0], kv_transfer_params, self._items(runs[0])))

    def _open(self, run: ChoiceRun) -> bytes:
        item = self._item(run, is_begun=True)
        added = self._event("response.output_item.added", output_index=0, item=item)
        if run.call is not None:
            return added
        part = self._part("", [])
        return added + self._event("response.content_part.added", **self._place(), part=part)

    def _close(self, run: ChoiceRun) -> list[bytes]:
        item = self._item(run)
        done = {"output_index": 0, "item": item}
        if run.call is not None:
            return [
                self._event(
                    "response.function_call_arguments.done",
                    item_id=self._call_id,
                    output_index=0,
                    name=run.call.name,
                    arguments=item["arguments"],
                ),
                self._event("response.output_item.done", **done),
            ]
        part = item["content"][0]
        return [
            self._event(
                "response.output_text.done",
                **self._place(),
                text=run.text,
                logprobs=part["logprobs"] or [],
            ),
            self._event("response.content_part.done", **self._place(), part=part),
            self._event("response.output_item.done", **done),
        ]

    def _event(self, kind: str, /, **fields: Any) -> bytes:
        number, self._number = self._number, self._number + 1
        return named_event(kind, {"type": kind, "sequence_number": number, **fields})

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._message_id, "output_index": 0, "content_index": 0}

    def _items(self, run: ChoiceRun) -> list[dict[str, Any]]:
        return [self._item(run)]

    def _item(self, run: ChoiceRun, is_begun: bool = False) -> dict[str, Any]:
        """The one item of output; `is_begun`: without what comes later. Complete even where the
        response is not: its status is that of the parser."""
        status = "in_progress" if is_begun else "completed"
        if run.call is not None:
            arguments = "" if is_begun else "".join(token.argument for token in run.tokens)
            return {
                "type": "function_call",
                "id": self._call_id,
                "call_id": run.call.id,
                "name": run.call.name,
                "arguments": arguments,
                "status": status,
            }
        logprobs = self._shape.chat(run.tokens) if self._shape and not is_begun else None
        has_text = bool(run.text) and not is_begun
        return {
            "type": "message",
            "id": self._message_id,
            "role": "assistant",
            "status": status,
            "content": [self._part(run.text, logprobs)] if has_text else [],
            "phase": None,
        }

    def _part(self, text: str, logprobs: list[dict[str, Any]] | None) -> dict[str, Any]:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}

    def _finished(
        self,
        run: ChoiceRun,
        kv_transfer_params: Mapping[str, Any] | None,
        output: list[dict[str, Any]],
    ) -> dict[str, Any]:
        prompt_tokens = self._asked.prompt_tokens
        usage = {
            "input_tokens": prompt_tokens,
            "input_tokens_details": {
                "cached_tokens": 0,
                "cache_write_tokens": 0,
                "input_tokens_per_turn": [],
                "cached_tokens_per_turn": [],
            },
            "output_tokens": run.count,
            "output_tokens_details": {
                "reasoning_tokens": 0,
                "tool_output_tokens": 0,
                "output_tokens_per_turn": [],
                "tool_output_tokens_per_turn": [],
            },
            "total_tokens": prompt_tokens + run.count,
        }
        return self._response(_status(run), output, usage, kv_transfer_params)

    def _response(
        self,
        status: str,
        output: list[dict[str, Any]],
        usage: dict[str, Any] | None,
        kv_transfer_params: Mapping[str, Any] | None,
    ) -> dict[str, Any]:
        given = self._given
        return {
            "id": self._id,
            "created_at": self._created,
            "incomplete_details": {"reason": "max_output_tokens"}
            if status == "incomplete"
            else None,
            "instructions": given.get("instructions"),
            "metadata": given.get("metadata"),
            "model": self._asked.model,
            "object": "response",
            "output": output,
            "parallel_tool_calls": given.get("parallel_tool_calls") is not False,
            "temperature": _or(given.get("temperature"), 1.0),
            "tool_choice": given.get("tool_choice", "auto") if given.get("tools") else "none",
            "tools": given.get("tools") or [],
            "top_p": _or(given.get("top_p"), 1.0),
            "background": False,
            "max_output_tokens": self._asked.sampling.max_tokens,
            "max_tool_calls": given.get("max_tool_calls"),
            "previous_response_id": None,
            "prompt": given.get("prompt"),
            "reasoning": given.get("reasoning"),
            "service_tier": given.get("service_tier", "auto"),
            "status": status,
            "text": given.get("text"),
            "top_logprobs": self._asked.sampling.logprobs,
            "truncation": given.get("truncation", "disabled"),
            "usage": usage,
            "user": given.get("user"),
            "presence_penalty": _or(given.get("presence_penalty"), 0.0),
            "frequency_penalty": _or(given.get("frequency_penalty"), 0.0),
            "kv_transfer_params": kv_transfer_params,
            "ec_transfer_params": None,
            "input_messages": None,
            "output_messages": None,
        }


def _status(run: ChoiceRun) -> str:
    return "incomplete" if run.finish == "length" else "completed"


def _or(value: Any, default: float) -> Any:
    return default if value is None else value
