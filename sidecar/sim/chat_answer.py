"""The bytes of a chat's answer: whole JSON and server-sent events, as vLLM 0.33 shapes them."""

from collections.abc import Mapping, Sequence
from typing import Any

from sidecar.sim.answer import (
    counts_of,
    data_event,
    dump,
    failure_and_done,
    usage_and_done,
    usage_of,
)
from sidecar.sim.choice_run import ChoiceRun, Step
from sidecar.sim.logprobs import prompt_logprobs
from sidecar.sim.model_request import ModelRequest
from sidecar.sim.options import SimOptions
from sidecar.sim.prompt import texts_of, tokens_of_prompt


class ChatAnswer:
    """Serialises one request's answer. `created` is Unix seconds. Also that of a batch."""

    def __init__(
        self, asked: ModelRequest, request_id: str, created: int, engine: SimOptions
    ) -> None:
        self._asked = asked
        self._engine = engine
        self._shape = asked.logprob_shape
        self._head = {
            "id": "chatcmpl-" + request_id,
            "object": "chat.completion.chunk",
            "created": created,
            "model": asked.model,
        }
        self._role = self._role_of_answer()

    def opening(self) -> list[bytes]:
        """The role of each choice, then what it continues if that is to be repeated."""
        asked = self._asked
        choices = range(asked.sampling.n * len(asked.prompts))
        deltas: list[dict[str, Any]] = [{"role": self._role, "content": ""}]
        if asked.echo and (last := self._last_of_role()):
            deltas.append({"content": last})
        events = []
        for delta in deltas:
            for index in choices:
                choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
                event: dict[str, Any] = {**self._head, "choices": [choice]}
                if "role" in delta:
                    ids = self._prompt_ids() if asked.return_token_ids else None
                    event |= {"prompt_token_ids": ids, "prompt_text": None}
                events.append(data_event(self._with_usage(event, 0)))
        return events

    def token_parts(self, index: int) -> tuple[bytes, bytes, bytes]:
        """(before a token, after it, after the last)."""
        before = data_event({**self._head, "choices": []})[:-4]
        before += b'{"index":%d,"delta":{"content":"' % index
        after = b'"},"logprobs":null,"finish_reason":null,"token_ids":null}]}\n\n'
        last = b'"},"logprobs":null,"finish_reason":"length","stop_reason":null,'
        end = b"" if self._asked.include_usage else b',"system_fingerprint":"%b"'
        end = end.replace(b"%b", self._engine.fingerprint.encode())
        return before, after, last + b'"token_ids":null}]' + end + b"}\n\n"

    def step(self, index: int, run: ChoiceRun, step: Step) -> bytes:
        """One event."""
        asked, shape = self._asked, self._shape
        choice: dict[str, Any] = {
            "index": index,
            "delta": self._delta(run, step),
            "logprobs": shape and {"content": shape.chat([step.token], step.number)},
            "finish_reason": step.finish and self._reason(run),
        }
        if step.finish:
            choice["stop_reason"] = step.stop_reason
        choice["token_ids"] = [step.token.id] if asked.return_token_ids else None
        event = {**self._head, "choices": [choice]}
        if step.finish and not asked.include_usage:
            event["system_fingerprint"] = self._engine.fingerprint
        return data_event(self._with_usage(event, step.number))

    def closing(self, _runs: Sequence[ChoiceRun], completion_tokens: int) -> list[bytes]:
        """The usage, if that is wanted, and the end."""
        told = {
            "usage": counts_of(self._asked.prompt_tokens, completion_tokens),
            "system_fingerprint": self._engine.fingerprint,
        }
        return usage_and_done(self._head, told if self._asked.include_usage else None)

    failure = staticmethod(failure_and_done)

    def whole(
        self, runs: Sequence[ChoiceRun], kv_transfer_params: Mapping[str, Any] | None
    ) -> bytes:
        """The answer that is not streamed."""
        asked = self._asked
        given = asked.sampling.prompt_logprobs
        has_prompt_logprobs = given is not None and asked.api == "chat"
        return dump(
            {
                **self._head,
                "object": "chat.completion",
                "choices": [self._choice(index, run) for index, run in enumerate(runs)],
                "service_tier": None,
                "system_fingerprint": self._engine.fingerprint,
                "usage": usage_of(asked.prompt_tokens, sum(run.count for run in runs)),
                "prompt_logprobs": prompt_logprobs(tokens_of_prompt(asked.prompts[0]), given or 0)
                if has_prompt_logprobs and not asked.sampling.is_beam
                else None,
                "prompt_token_ids": self._prompt_ids() if asked.return_token_ids else None,
                "prompt_text": None,
                "kv_transfer_params": kv_transfer_params,
                "ec_transfer_params": None,
                "metrics": None,
            }
        )

    def _choice(self, index: int, run: ChoiceRun) -> dict[str, Any]:
        asked, shape = self._asked, self._shape
        content = run.text
        if asked.echo and asked.api == "chat":
            content = self._last_of_role() + content
        message: dict[str, Any] = {
            "role": self._role,
            "content": content,
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
            "reasoning": None,
        }
        if run.call is not None:
            arguments = "".join(token.argument for token in run.tokens)
            message["content"] = "" if asked.is_call_forced else None
            message["tool_calls"] = [
                {
                    "id": run.call.id,
                    "type": "function",
                    "function": {"name": run.call.name, "arguments": arguments},
                }
            ]
        return {
            "index": index,
            "message": message,
            "logprobs": shape and {"content": shape.chat(run.tokens)},
            "finish_reason": self._reason(run),
            "stop_reason": run.stop_reason,
            "token_ids": [token.id for token in run.tokens] if asked.return_token_ids else None,
            "routed_experts": None,
        }

    def _delta(self, run: ChoiceRun, step: Step) -> dict[str, Any]:
        call = run.call
        if call is None:
            return {"content": step.text}
        if step.number == 1:
            head = {"id": call.id, "type": "function", "index": 0}
            return {"tool_calls": [{**head, "function": {"name": call.name, "arguments": ""}}]}
        if not step.token.argument:
            return {}
        return {"tool_calls": [{"index": 0, "function": {"arguments": step.token.argument}}]}

    def _reason(self, run: ChoiceRun) -> str | None:
        if run.call is not None and run.finish == "stop" and not self._asked.is_call_named:
            return "tool_calls"
        return run.finish

    def _with_usage(self, event: dict[str, Any], completion_tokens: int) -> dict[str, Any]:
        if self._asked.continuous_usage:
            event["usage"] = counts_of(self._asked.prompt_tokens, completion_tokens)
        return event

    def _prompt_ids(self) -> list[int]:
        return [token.id for token in tokens_of_prompt(self._asked.prompts[0])]

    def _role_of_answer(self) -> str:
        """The model's, unless it goes on with the last message."""
        messages = self._asked.body["messages"]
        if self._asked.body.get("add_generation_prompt", True) or self._asked.api == "batch":
            return "assistant"
        return str(messages[-1].get("role", "assistant"))

    def _last_of_role(self) -> str:
        last = self._asked.body["messages"][-1]
        if last.get("role") != self._role:
            return ""
        return "\n".join(texts_of(last.get("content")))
