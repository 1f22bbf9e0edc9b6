"""One request to the model as a checked value; what vLLM refuses with 4xx is refused here."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sidecar.sim.api_error import ApiError, BrokenRule, InvalidBody
from sidecar.sim.counters import Leg
from sidecar.sim.fields import (
    BOOL,
    INT,
    LIST,
    MOST_PROMPTS,
    NOT_NULL,
    OBJECT,
    SAMPLING,
    Kind,
    check_cache_salt,
    check_stream_options,
    check_types,
    require,
)
from sidecar.sim.forms import Form, is_named, read_form
from sidecar.sim.images import ImageError
from sidecar.sim.kv_params import KvParams, leg_of, read_kv_params
from sidecar.sim.logprobs import LogprobShape
from sidecar.sim.models import Models
from sidecar.sim.prompt import Api, Prompt, read_prompts
from sidecar.sim.sampling import Sampling, check_logprobs, read_sampling

_KINDS: Mapping[str, Mapping[str, Kind]] = {
    "completions": {**SAMPLING, "logprobs": INT},
    "chat": {**SAMPLING, "logprobs": BOOL, "messages": LIST, "tools": LIST},
    "batch": {**SAMPLING, "logprobs": BOOL, "messages": LIST},
    "responses": {**SAMPLING, "tools": LIST, "metadata": OBJECT},
    "messages": {},
}
_NOT_NULL_OF_API = {
    "completions": (*NOT_NULL, "n"),
    "chat": (*NOT_NULL, "echo", "messages"),
    "batch": ("messages",),
}


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A request that vLLM would run. `body` is the client's, or the chat it was turned into."""

    api: Api
    model: str
    body: Mapping[str, Any]
    stream: bool
    include_usage: bool
    continuous_usage: bool
    echo: bool
    prompts: tuple[Prompt, ...]
    sampling: Sampling
    form: Form | None
    kv: KvParams | None
    may_stop_early: bool
    """A stop string or EOS could end it before `max_tokens` (no `min_tokens` 1, or `stop`)."""

    @property
    def leg(self) -> Leg:
        """What the request is to this engine: a leg of a pair, or a request served whole."""
        return leg_of(self.body.get("kv_transfer_params"))

    @property
    def prompt_tokens(self) -> int:
        """Of all prompts together."""
        return sum(prompt.tokens for prompt in self.prompts)

    @property
    def return_token_ids(self) -> bool:
        """Ids of prompt and answer beside the text."""
        return bool(self.body.get("return_token_ids"))

    @property
    def is_echo_alone(self) -> bool:
        """The prompt is all that is wanted; a token is made all the same."""
        return self.echo and self.api == "completions" and self.body.get("max_tokens") == 0

    @property
    def is_call_named(self) -> bool:
        """One tool is forced by name."""
        return is_named(self.body)

    @property
    def is_call_forced(self) -> bool:
        """Some tool is forced."""
        return self.is_call_named or self.body.get("tool_choice") == "required"

    @property
    def logprob_shape(self) -> LogprobShape | None:
        """How log probabilities are wanted, if at all."""
        if self.sampling.logprobs is None:
            return None
        by_id = bool(self.body.get("return_tokens_as_token_ids"))
        return LogprobShape(self.sampling.logprobs, self.sampling.chosen_ids, by_id)

    @property
    def is_word_an_event(self) -> bool:
        """Each event of the stream is one word and nothing else: the fast way."""
        return (
            self.form is None
            and self.sampling.is_plain
            and all(self.sampling.ends_at(prompt.eos_at) is None for prompt in self.prompts)
            and not (self.echo or self.continuous_usage or self.return_token_ids)
        )


def read_json_object(content_type: str, raw: bytes) -> dict[str, Any]:
    """The body as a JSON object; raises InvalidBody."""
    if content_type.partition(";")[0].strip().lower() != "application/json":
        problem = "Unsupported Media Type: Only 'application/json' is allowed"
        raise InvalidBody("", "value_error", problem)
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise InvalidBody("", "json_invalid", f"JSON decode error: {error}") from None
    if not isinstance(body, dict):
        raise InvalidBody("", "model_attributes_type", "Input should be a valid dictionary", body)
    return body


def read_model_request(
    api: Api, body: Mapping[str, Any], models: Models, max_model_len: int
) -> ModelRequest:
    """Check a body as vLLM does; raises ApiError 400 or 404."""
    check_types(body, _KINDS[api], _NOT_NULL_OF_API.get(api, ()))
    _check_rules(api, body)
    if api == "completions" and body.get("stream") and body.get("use_beam_search"):
        raise ApiError(400, "Streaming is not currently supported with beam search")
    form = read_form(body)
    model = models.find(body.get("model"))
    try:
        prompts = read_prompts(api, body, model.adapter)
        params = body.get("kv_transfer_params")
        kv = None if params is None else read_kv_params(params)
    except ImageError as error:
        raise ApiError(400, str(error)) from None
    except ValueError as error:
        key, _, problem = str(error).partition(": ")
        raise InvalidBody(key, "value_error", problem) from None
    longest = max(prompt.tokens for prompt in prompts)
    options = body.get("stream_options") or {}
    include_usage = bool(options.get("include_usage"))
    request = ModelRequest(
        api=api,
        model=model.name,
        body=body,
        stream=bool(body.get("stream")),
        include_usage=include_usage,
        continuous_usage=include_usage and bool(options.get("continuous_usage_stats")),
        echo=bool(body.get("echo")),
        prompts=prompts,
        sampling=read_sampling(api, body, longest, max_model_len),
        form=form,
        kv=kv,
        may_stop_early=_may_stop_early(api, body),
    )
    if request.leg != "plain" and (request.sampling.n > 1 or len(prompts) > 1 or api == "batch"):
        # vLLM would let all children share one transfer id: one is right, the rest hang or
        # read freed blocks (protocol.md f 15). No proxy may ever send this.
        raise ApiError(400, "sim: n > 1 or several prompts with kv_transfer_params")
    return request


def _may_stop_early(api: Api, body: Mapping[str, Any]) -> bool:
    if any(body.get(key) for key in ("stop", "stop_token_ids")):
        return True
    # The others have no min_tokens with which a router could hinder it.
    return api in ("completions", "chat", "batch") and body.get("min_tokens") != 1


def _check_rules(api: Api, body: Mapping[str, Any]) -> None:
    """What vLLM's request models check beyond types."""
    check_stream_options(body)
    if api in ("completions", "chat", "batch"):
        check_logprobs(api, body)
    check_cache_salt(body)
    truncate = body.get("truncate_prompt_tokens")
    if truncate is not None and truncate < -1:
        problem = "Input should be greater than or equal to -1"
        raise InvalidBody("truncate_prompt_tokens", "greater_than_equal", problem, truncate)
    if api == "completions":
        _check_prompt(body)
        return
    if api == "batch":
        _check_batch(body)
        return
    require(body, "messages")
    if body.get("continue_final_message") and body.get("add_generation_prompt"):
        raise BrokenRule(
            "Cannot set both `continue_final_message` and `add_generation_prompt` to True."
        )
    for message in body["messages"]:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise InvalidBody("messages.0.role", "missing", "Field required", message)


def _check_prompt(body: Mapping[str, Any]) -> None:
    prompt = body.get("prompt")
    if prompt in (None, "") and not body.get("prompt_embeds"):
        raise BrokenRule("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
    if isinstance(prompt, list):
        if len(prompt) > MOST_PROMPTS and not isinstance(prompt[0], int):
            raise BrokenRule(
                f"prompt list length {len(prompt)} exceeds the maximum allowed count of "
                f"{MOST_PROMPTS}. To increase this limit, set the VLLM_MAX_COMPLETION_PROMPTS "
                "environment variable.",
                "prompt",
            )
        if any(one in ("", []) for one in prompt):
            raise ApiError(400, "The decoder prompt cannot be empty")


def _check_batch(body: Mapping[str, Any]) -> None:
    require(body, "messages")
    if body.get("use_beam_search"):
        raise BrokenRule(
            "Batch chat completions do not support beam search. Please set `use_beam_search` to "
            "False.",
            "use_beam_search",
        )
    if body.get("n") not in (None, 1):
        raise BrokenRule("Batch chat completions do not support `n > 1`. Please set `n` to 1.", "n")
    if not body["messages"] or not all(isinstance(one, list) and one for one in body["messages"]):
        raise InvalidBody("messages", "list_type", "Input should be a valid list", body["messages"])
