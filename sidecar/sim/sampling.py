"""How the words of an answer are chosen, cut and reported: vLLM's SamplingParams as a value."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sidecar.sim.api_error import ApiError, BrokenRule
from sidecar.sim.prompt import Api
from sidecar.sim.words import VOCABULARY

MOST_LOGPROBS = 20  # vLLM's --max-logprobs
_GREEDY_BELOW = 1e-5  # vLLM's own threshold of temperature
_DEFAULT_MAX_TOKENS = {"completions": 16}  # vLLM's own default
_REST_OF_CONTEXT = 32  # vLLM: the rest of the context; here finite and fixed

# What changes the words of a sampled answer, and what those of any; a default changes nothing.
_SAMPLED = ("temperature", "seed", "top_p", "top_k", "min_p")
_STEERING: Mapping[str, Any] = {
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "repetition_penalty": 1,
    "logit_bias": {},
    "allowed_token_ids": None,
    "bad_words": [],
    "structured_outputs": None,
    "thinking_token_budget": None,
}

_RANGED = frozenset((*_SAMPLED, "presence_penalty", "frequency_penalty", "repetition_penalty"))


@dataclass(frozen=True, slots=True)
class Sampling:
    """One request's. `logprobs` and `prompt_logprobs`: how many alternatives, None: no logprobs."""

    max_tokens: int
    min_tokens: int = 0
    n: int = 1
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    include_stop: bool = False
    stop_token_ids: frozenset[int] = frozenset()
    is_beam: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    chosen_ids: tuple[int, ...] = ()
    """`logprob_token_ids`: the alternatives, in place of the likeliest."""
    key: bytes = b""
    """What the words depend on beside the prompt; empty: greedy."""

    def ends_at(self, eos_at: int | None) -> int | None:
        """Which token is the end of sequence, or None; min_tokens masks it (protocol c)."""
        if eos_at is None or self.ignore_eos:
            return None
        return eos_at if self.is_beam else max(eos_at, self.min_tokens + 1)

    @property
    def is_plain(self) -> bool:
        """Nothing but max_tokens ends it, and nothing but its words is reported."""
        return not (self.stop or self.stop_token_ids) and self.logprobs is None


def limit_of(api: Api, body: Mapping[str, Any]) -> int:
    """How many tokens the body asks for; `max_completion_tokens` wins in chat, as in vLLM."""
    asked = body.get("max_completion_tokens") if api in ("chat", "batch") else None
    if asked is None:
        asked = body.get("max_output_tokens" if api == "responses" else "max_tokens")
    if asked is not None:
        return int(asked)
    # Never less than is asked for at least: the rest of a real context is longer than that.
    return _DEFAULT_MAX_TOKENS.get(api) or max(_REST_OF_CONTEXT, int(body.get("min_tokens") or 0))


def words_key(body: Mapping[str, Any]) -> bytes:
    """The part of a body that changes the words without changing the prompt."""
    changes: dict[str, Any] = {}
    if (body.get("temperature") or 0) >= _GREEDY_BELOW:
        changes = {key: body[key] for key in _SAMPLED if body.get(key) is not None}
    for key in body.keys() & _STEERING.keys():
        if body[key] is not None and body[key] != _STEERING[key]:
            changes[key] = body[key]
    if body.get("use_beam_search"):
        changes["beam"] = body.get("length_penalty", 1.0)
    return json.dumps(changes, sort_keys=True).encode() if changes else b""


def read_sampling(
    api: Api, body: Mapping[str, Any], prompt_tokens: int, max_model_len: int
) -> Sampling:
    """Check and read; `prompt_tokens` is the longest prompt's. Raises ApiError 400."""
    asked = limit_of(api, body)
    if asked > max_model_len:
        name = {"responses": "max_output_tokens"}.get(api, "max_tokens")
        if api in ("chat", "batch") and body.get("max_completion_tokens") is not None:
            name = "max_completion_tokens"
        raise ApiError(
            400,
            f"{name}={asked} cannot be greater than max_model_len={max_model_len}. "
            "Please request fewer output tokens.",
            name,
            value=asked,
        )
    if prompt_tokens > max_model_len:
        raise ApiError(
            400,
            f"This model's maximum context length is {max_model_len} tokens. However, your "
            f"prompt contains {prompt_tokens} input tokens, which exceeds this limit even without "
            "any output tokens. Please reduce the length of the input prompt.",
            "input_tokens",
            value=prompt_tokens,
        )
    limit = min(asked, max_model_len - prompt_tokens)
    if api == "completions" and body.get("echo") and asked == 0:
        limit = 1  # its one token is generated, and thrown away
    stop = body.get("stop")
    sampling = Sampling(
        max_tokens=limit,
        min_tokens=body.get("min_tokens") or 0,
        n=1 if body.get("n") is None else body["n"],
        ignore_eos=bool(body.get("ignore_eos")),
        stop=(stop,) if isinstance(stop, str) else tuple(stop or ()),
        include_stop=bool(body.get("include_stop_str_in_output")),
        stop_token_ids=frozenset(body.get("stop_token_ids") or ()),
        is_beam=bool(body.get("use_beam_search")),
        logprobs=_read_logprobs(api, body),
        prompt_logprobs=_read_prompt_logprobs(api, body),
        chosen_ids=tuple(body.get("logprob_token_ids") or ()),
        key=words_key(body),
    )
    if not body.keys().isdisjoint(_RANGED):
        _check_ranges(body)
    _check_counts(sampling, body)
    return sampling


def _read_logprobs(api: Api, body: Mapping[str, Any]) -> int | None:
    if api == "completions":
        value = body.get("logprobs")
        return None if value is None else int(value)
    if api == "responses":
        wanted = "message.output_text.logprobs" in (body.get("include") or ())
        return int(body.get("top_logprobs") or 0) if wanted else None
    return int(body.get("top_logprobs") or 0) if body.get("logprobs") else None


def _read_prompt_logprobs(api: Api, body: Mapping[str, Any]) -> int | None:
    value = body.get("prompt_logprobs")
    if value is None and body.get("echo"):
        # A chat's are 0 where it names none, and 0 is the prompt's own tokens.
        value = body.get("logprobs") if api == "completions" else body.get("top_logprobs") or 0
    return None if value is None else int(value)


def check_logprobs(api: Api, body: Mapping[str, Any]) -> None:
    """What vLLM's request models check of logprobs; raises BrokenRule."""
    count = "logprobs" if api == "completions" else "top_logprobs"
    for key in ("prompt_logprobs", count):
        value = body.get(key)
        if value is not None and type(value) is not int:
            raise BrokenRule(f"`{key}` must be an integer.", key)
        if value is not None and value < -1:
            raise BrokenRule(f"`{key}` must be a positive value or -1.", key)
    prompt_logprobs = body.get("prompt_logprobs")
    if prompt_logprobs and body.get("stream"):
        raise BrokenRule(
            "`prompt_logprobs` are not available when `stream=True`.", "prompt_logprobs"
        )
    wants = body.get("logprobs") is not None if api == "completions" else body.get("logprobs")
    if api != "completions" and body.get("top_logprobs") and not wants:
        raise BrokenRule(
            "when using `top_logprobs`, `logprobs` must be set to true.", "top_logprobs"
        )
    if body.get("logprob_token_ids") and not wants:
        to_true = "" if api == "completions" else " to true"
        raise BrokenRule(
            f"when using `logprob_token_ids`, `logprobs` must be set{to_true}.", "logprob_token_ids"
        )
    if body.get("use_beam_search") and body.get("echo") and wants and api == "completions":
        raise BrokenRule(
            "`echo` with `logprobs` is not supported with beam search because beam search does "
            "not compute prompt logprobs.",
            "echo",
        )


def _check_counts(sampling: Sampling, body: Mapping[str, Any]) -> None:
    limit, least, n = sampling.max_tokens, sampling.min_tokens, sampling.n
    if n < 1:
        raise ApiError(400, f"n must be at least 1, got {n}.")
    temperature = body.get("temperature")
    is_greedy = temperature is not None and temperature < _GREEDY_BELOW
    if n > 1 and is_greedy and not sampling.is_beam:
        raise ApiError(400, f"n must be 1 when using greedy sampling, got {n}.")
    if limit < 1:
        problem = f"max_tokens must be at least 1, got {limit}."
        raise ApiError(400, problem, "max_tokens", value=limit)
    if least < 0:
        raise ApiError(400, f"min_tokens must be greater than or equal to 0, got {least}.")
    if least > limit:
        raise ApiError(
            400, f"min_tokens must be less than or equal to max_tokens={limit}, got {least}."
        )
    if any(not one for one in sampling.stop):
        raise ApiError(400, "stop cannot contain an empty string.")
    for what, count in (("sample", sampling.logprobs), ("prompt", sampling.prompt_logprobs)):
        count = VOCABULARY if count == -1 else count
        if count is not None and count > MOST_LOGPROBS:
            raise ApiError(
                400,
                f"Requested {what} logprobs of {count}, which is greater than max allowed: "
                f"{MOST_LOGPROBS}",
            )


def _check_ranges(body: Mapping[str, Any]) -> None:
    for key in ("presence_penalty", "frequency_penalty"):
        value = _number(body, key, 0.0)
        if not -2 <= value <= 2:
            raise ApiError(400, f"{key} must be in [-2, 2], got {value}.")
    if (value := _number(body, "repetition_penalty", 1.0)) <= 0 or not math.isfinite(value):
        raise ApiError(400, f"repetition_penalty must be greater than zero, got {value}.")
    value = _number(body, "temperature", 1.0)
    if not math.isfinite(value):
        raise _out_of_range("temperature", "be a finite number", value)
    if value < 0:
        raise _out_of_range("temperature", "be non-negative", value)
    if value > 2:
        raise _out_of_range("temperature", "be in [0, 2]", value)
    if not 0 < (value := _number(body, "top_p", 1.0)) <= 1:
        raise _out_of_range("top_p", "be in (0, 1]", value)
    if (value := _number(body, "top_k", 0)) < -1:
        raise ApiError(400, f"top_k must be 0 (disable), or at least 1, got {value}.")
    if not 0 <= (value := _number(body, "min_p", 0.0)) <= 1:
        raise ApiError(400, f"min_p must be in [0, 1], got {value}.")


def _out_of_range(key: str, what: str, value: float) -> ApiError:
    return ApiError(400, f"{key} must {what}, got {value}.", key, value=value)


def _number(body: Mapping[str, Any], key: str, default: float) -> float:
    """As vLLM's request models turn it: 7 is 7.0."""
    value: float | None = body.get(key)
    return default if value is None else type(default)(value)
