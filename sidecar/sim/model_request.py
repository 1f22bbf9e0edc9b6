"""One request to the model as a checked value; what vLLM refuses with 4xx is refused here."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sidecar.sim.api_error import ApiError
from sidecar.sim.counters import Leg
from sidecar.sim.kv_params import KvParams, read_kv_params
from sidecar.sim.model import Api, Prompt, limit_of, read_prompts

MAX_MODEL_LEN = 1 << 20  # tokens; only the asked-for output is held against it
_TYPES: Mapping[str, tuple[type, ...]] = {
    "model": (str,),
    "stream": (bool,),
    "stream_options": (dict,),
    "max_tokens": (int,),
    "max_completion_tokens": (int,),
    "min_tokens": (int,),
    "n": (int,),
    "temperature": (int, float),
    "top_p": (int, float),
    "top_k": (int,),
    "seed": (int,),
    "echo": (bool,),
    "ignore_eos": (bool,),
    "kv_transfer_params": (dict,),
}


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A request that vLLM would run."""

    api: Api
    stream: bool
    include_usage: bool
    max_tokens: int
    n: int
    echo: bool
    prompts: tuple[Prompt, ...]
    kv: KvParams | None
    may_stop_early: bool
    """A stop string or EOS could end it before `max_tokens` (no `min_tokens` 1, or `stop`)."""

    @property
    def leg(self) -> Leg:
        """What the request is to this engine: a leg of a pair, or a request served whole."""
        return leg_of(self.kv)


def leg_of(kv: KvParams | None) -> Leg:
    """Prefill or decode by the flags of `kv_transfer_params`, else plain."""
    if kv is not None and kv.do_remote_decode:
        return "prefill"
    if kv is not None and kv.do_remote_prefill:
        return "decode"
    return "plain"


def read_json_object(content_type: str, raw: bytes) -> dict[str, Any]:
    """The body as a JSON object; raises ApiError 400."""
    if content_type.partition(";")[0].strip().lower() != "application/json":
        raise ApiError(400, "Unsupported Media Type: Only 'application/json' is allowed")
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"JSON decode error: {error}") from None
    if not isinstance(body, dict):
        raise ApiError(400, "Input should be a valid dictionary")
    return body


def read_model_request(api: Api, body: Mapping[str, Any], model: str) -> ModelRequest:
    """Check a body as vLLM does; raises ApiError 400 or 404."""
    _check_types(body)
    asked_model = body.get("model")
    if asked_model is not None and asked_model != model:
        raise ApiError(404, f"The model `{asked_model}` does not exist.", "model")
    options = body.get("stream_options")
    if options and not body.get("stream"):
        raise ApiError(400, "Stream options can only be defined when `stream=True`.")
    max_tokens = limit_of(api, body)
    echo = bool(body.get("echo"))
    _check_limits(max_tokens, body.get("min_tokens") or 0, echo)
    try:
        prompts = read_prompts(api, body)
        params = body.get("kv_transfer_params")
        kv = None if params is None else read_kv_params(params)
    except ValueError as error:
        raise ApiError(400, f"1 validation error: {error}") from None
    n = 1 if body.get("n") is None else body["n"]
    if n < 1:
        raise ApiError(400, f"n must be at least 1, got {n}.")
    request = ModelRequest(
        api=api,
        stream=bool(body.get("stream")),
        include_usage=bool(options and options.get("include_usage")),
        max_tokens=max_tokens,
        n=n,
        echo=echo,
        prompts=prompts,
        kv=kv,
        may_stop_early=body.get("min_tokens") != 1
        or any(body.get(key) for key in ("stop", "stop_token_ids")),
    )
    if request.leg != "plain" and (n > 1 or len(prompts) > 1):
        # vLLM would let all children share one transfer id: one is right, the rest hang or
        # read freed blocks (protocol.md f 15). No proxy may ever send this.
        raise ApiError(400, "sim: n > 1 or several prompts with kv_transfer_params")
    return request


def _check_types(body: Mapping[str, Any]) -> None:
    for key, allowed in _TYPES.items():
        value = body.get(key)
        if value is None:
            continue
        if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
            raise ApiError(400, f"1 validation error: {key}: Input should be {allowed}", key)


def _check_limits(max_tokens: int, min_tokens: int, echo: bool) -> None:
    if max_tokens < 1 and not (echo and max_tokens == 0):
        raise ApiError(400, f"max_tokens must be at least 1, got {max_tokens}.", "max_tokens")
    if max_tokens > MAX_MODEL_LEN:
        raise ApiError(
            400, f"This model's maximum context length is {MAX_MODEL_LEN} tokens.", "max_tokens"
        )
    if min_tokens < 0:
        raise ApiError(400, f"min_tokens must be greater than or equal to 0, got {min_tokens}.")
    if min_tokens > max_tokens:
        raise ApiError(
            400,
            f"min_tokens must be less than or equal to max_tokens={max_tokens}, got {min_tokens}.",
        )
