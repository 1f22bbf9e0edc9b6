"""The bytes of a completion: whole JSON and server-sent events, as vLLM 0.33 shapes them.

An event's constant parts are serialised once a request; each token is then a concatenation.
"""

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
from sidecar.sim.prompt import Prompt, tokens_of_prompt
from sidecar.sim.words import Token


class CompletionAnswer:
    """Serialises one request's answer. `created` is Unix seconds."""

    def __init__(
        self, asked: ModelRequest, request_id: str, created: int, engine: SimOptions
    ) -> None:
        self._asked = asked
        self._engine = engine
        self._shape = asked.logprob_shape
        self._head = {
            "id": "cmpl-" + request_id,
            "object": "text_completion",
            "created": created,
            "model": asked.model,
        }
        self._offsets: dict[int, int] = {}

    def opening(self) -> list[bytes]:
        """None: a completion begins with its first token."""
        return []

    def token_parts(self, index: int) -> tuple[bytes, bytes, bytes]:
        """(before a token, after it, after the last)."""
        before = data_event({**self._head, "choices": []})[:-4] + b'{"index":%d,"text":"' % index
        after = b'","logprobs":null,"finish_reason":%b,"stop_reason":null,'
        after += b'"prompt_token_ids":null,"token_ids":null}]%b}\n\n'
        end = b"" if self._asked.include_usage else b',"system_fingerprint":"%b"'
        end = end.replace(b"%b", self._engine.fingerprint.encode())
        return before, after % (b"null", b""), after % (b'"length"', end)

    def step(self, index: int, _run: ChoiceRun, step: Step) -> bytes:
        """One event; the first repeats the prompt if that is wanted."""
        asked, prompt = self._asked, self._prompt(index)
        is_first = step.number == 1
        text, tokens = step.text, [step.token]
        place = step.number + (prompt.tokens if asked.echo and not is_first else 0)
        if asked.echo and is_first:
            tokens = tokens_of_prompt(prompt) + tokens
            text = prompt.text + text
            if asked.is_echo_alone:
                text, tokens = prompt.text, tokens[:-1]
        choice: dict[str, Any] = {
            "index": index,
            "text": text,
            "logprobs": self._logprobs(index, tokens, place, asked.echo and is_first),
            "finish_reason": step.finish,
            "stop_reason": step.stop_reason,
        }
        has_ids = is_first and (asked.return_token_ids or asked.echo)
        choice["prompt_token_ids"] = (
            [token.id for token in tokens_of_prompt(prompt)] if has_ids else None
        )
        choice["token_ids"] = [step.token.id] if asked.return_token_ids else None
        event: dict[str, Any] = {**self._head, "choices": [choice]}
        if step.finish and not asked.include_usage:
            event["system_fingerprint"] = self._engine.fingerprint
        if asked.continuous_usage:
            event["usage"] = counts_of(prompt.tokens, step.number)
        return data_event(event)

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
        count = sum(run.count for run in runs)
        return dump(
            {
                **self._head,
                "choices": [self._choice(index, run) for index, run in enumerate(runs)],
                "service_tier": None,
                "system_fingerprint": self._engine.fingerprint,
                "usage": usage_of(self._asked.prompt_tokens, count),
                "kv_transfer_params": kv_transfer_params,
                "ec_transfer_params": None,
                "metrics": None,
            }
        )

    def _choice(self, index: int, run: ChoiceRun) -> dict[str, Any]:
        asked, prompt = self._asked, self._prompt(index)
        sampling, text, tokens = asked.sampling, run.text, run.tokens
        if asked.echo:
            is_alone = asked.is_echo_alone
            text = prompt.text if is_alone else prompt.text + text
            tokens = tokens_of_prompt(prompt) + ([] if is_alone else tokens)
        given = sampling.prompt_logprobs
        return {
            "index": index,
            "text": text,
            "logprobs": self._logprobs(index, tokens, 1, asked.echo),
            "finish_reason": run.finish,
            "stop_reason": run.stop_reason,
            "token_ids": [token.id for token in run.tokens] if asked.return_token_ids else None,
            "prompt_logprobs": None
            if given is None or sampling.is_beam
            else prompt_logprobs(tokens_of_prompt(prompt), given),
            "prompt_token_ids": [token.id for token in tokens_of_prompt(prompt)]
            if asked.return_token_ids
            else None,
            "routed_experts": None,
        }

    def _logprobs(
        self, index: int, tokens: list[Token], place: int, has_start: bool
    ) -> dict[str, Any] | None:
        shape = self._shape
        if shape is None:
            return None
        offset = self._offsets.get(index, 0)
        found = shape.completion(tokens, place, offset, has_start)
        if tokens:
            self._offsets[index] = found["text_offset"][-1] + len(found["tokens"][-1])
        return found

    def _prompt(self, index: int) -> Prompt:
        return self._asked.prompts[index // self._asked.sampling.n]
