"""The types of a body's fields, as vLLM's request models have them.

Stricter than they are in one thing: "1" is no number here, and true is no 1.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from sidecar.sim.api_error import BrokenRule, InvalidBody

MOST_STOPS = 4  # vLLM's VLLM_MAX_STOP_STRINGS
LONGEST_CACHE_SALT = 128
MOST_PROMPTS = 1024  # vLLM's VLLM_MAX_COMPLETION_PROMPTS
_INT64 = range(-(2**63), 2**63)


class Kind(NamedTuple):
    """One type: who has it, pydantic's name for who has not, and its words."""

    fits: Callable[[Any], bool]
    rule: str
    words: str


def _is_int(value: Any) -> bool:
    return type(value) is int and value in _INT64


INT = Kind(_is_int, "int_type", "Input should be a valid integer")
WHOLE = Kind(lambda v: type(v) is int, "int_type", "Input should be a valid integer")
"""Of any size."""
NUMBER = Kind(lambda v: type(v) in (int, float), "float_type", "Input should be a valid number")
BOOL = Kind(lambda v: type(v) is bool, "bool_type", "Input should be a valid boolean")
TEXT = Kind(lambda v: isinstance(v, str), "string_type", "Input should be a valid string")
OBJECT = Kind(lambda v: isinstance(v, dict), "dict_type", "Input should be a valid dictionary")
LIST = Kind(lambda v: isinstance(v, list), "list_type", "Input should be a valid list")
_PARSED = {
    "int_type": ("int_parsing", "unable to parse string as an integer"),
    "float_type": ("float_parsing", "unable to parse string as a number"),
}
IDS = Kind(
    lambda v: isinstance(v, list) and all(map(_is_int, v)),
    "int_type",
    "Input should be a valid list of integers",
)
TEXTS = Kind(
    lambda v: isinstance(v, list) and all(isinstance(one, str) for one in v),
    "string_type",
    "Input should be a valid list of strings",
)
STOP = Kind(
    lambda v: isinstance(v, str) or (TEXTS.fits(v) and len(v) <= MOST_STOPS),
    "list_type",
    f"Input should be a valid string or list of at most {MOST_STOPS} strings",
)

SAMPLING: Mapping[str, Kind] = {
    "model": TEXT,
    "stream": BOOL,
    "stream_options": OBJECT,
    "max_tokens": WHOLE,
    "max_completion_tokens": WHOLE,
    "max_output_tokens": WHOLE,
    "min_tokens": INT,
    "n": INT,
    "temperature": NUMBER,
    "top_p": NUMBER,
    "top_k": INT,
    "min_p": NUMBER,
    "presence_penalty": NUMBER,
    "frequency_penalty": NUMBER,
    "repetition_penalty": NUMBER,
    "length_penalty": NUMBER,
    "seed": WHOLE,
    "stop": STOP,
    "stop_token_ids": IDS,
    "include_stop_str_in_output": BOOL,
    "ignore_eos": BOOL,
    "use_beam_search": BOOL,
    "echo": BOOL,
    "prompt_logprobs": INT,
    "top_logprobs": INT,
    "logprob_token_ids": IDS,
    "return_token_ids": BOOL,
    "return_tokens_as_token_ids": BOOL,
    "logit_bias": OBJECT,
    "allowed_token_ids": IDS,
    "bad_words": TEXTS,
    "user": TEXT,
    "request_id": TEXT,
    "cache_salt": TEXT,
    "priority": INT,
    "truncate_prompt_tokens": INT,
    "response_format": OBJECT,
    "structured_outputs": OBJECT,
    "kv_transfer_params": OBJECT,
    "ec_transfer_params": OBJECT,
}
"""Of the OpenAI-like APIs; what an API does not know is not looked at."""
NOT_NULL = (
    "min_tokens",
    "ignore_eos",
    "use_beam_search",
    "include_stop_str_in_output",
    "bad_words",
)


def check_types(
    body: Mapping[str, Any], kinds: Mapping[str, Kind], not_null: tuple[str, ...] = ()
) -> None:
    """Raises InvalidBody naming the first field of a wrong type; null passes but where named."""
    for key in body.keys() & kinds.keys():
        value, kind = body[key], kinds[key]
        if value is None and key not in not_null:
            continue
        if not kind.fits(value):
            raise _misfit(key, kind, value)


def _misfit(key: str, kind: Kind, value: Any) -> InvalidBody:
    """A text in place of a number is read first, and then it is none."""
    if isinstance(value, str) and kind.rule in _PARSED:
        rule, problem = _PARSED[kind.rule]
        return InvalidBody(key, rule, f"{kind.words}, {problem}", value)
    return InvalidBody(key, kind.rule, kind.words, value)


def require(body: Mapping[str, Any], *keys: str) -> None:
    """Raises InvalidBody for the first that is absent."""
    for key in keys:
        if key not in body:
            raise InvalidBody(key, "missing", "Field required", dict(body))


def check_cache_salt(body: Mapping[str, Any]) -> None:
    """What vLLM lets into its cache keys."""
    salt = body.get("cache_salt")
    if salt is None:
        return
    if not isinstance(salt, str) or not salt:
        raise BrokenRule(
            "Parameter 'cache_salt' must be a non-empty string if provided.", "cache_salt"
        )
    if len(salt) > LONGEST_CACHE_SALT or set(salt) & set("@/\\\0"):
        raise BrokenRule(
            "Parameter 'cache_salt' must be at most 128 characters and must not contain '@', "
            "'/', '\\\\', or NUL.",
            "cache_salt",
        )


def check_stream_options(body: Mapping[str, Any]) -> None:
    """They come with a stream alone."""
    options = body.get("stream_options")
    if options and not body.get("stream"):
        raise BrokenRule("Stream options can only be defined when `stream=True`.", "stream_options")
    for key, value in (options or {}).items():
        if key in ("include_usage", "continuous_usage_stats") and value is not None:
            check_types({key: value}, {key: BOOL})
