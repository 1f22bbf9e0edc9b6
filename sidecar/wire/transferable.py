"""Whether one KV transfer can carry a request, by the fields of its body (protocol h).

What cannot be carried is served whole by one instance. So is what an engine would refuse by a field
that the prefill leg does not have as the client wrote it: prefill would be spent, and its KV left
behind, before decode says no. There the engine's own refusal is the answer; if it does not refuse,
the answer is right all the same.
"""

import re
from typing import Annotated

import msgspec

from sidecar.wire.openai import NULL, Fields, is_many, is_null, is_set, is_true
from sidecar.wire.paths import Api

_INT32_MAX = 2**31 - 1
DEFAULT_MAX_TOKENS = 16
"""of `/v1/completions` (vLLM's and OpenAI's)"""

_Count = Annotated[int, msgspec.Meta(ge=1, le=_INT32_MAX)] | None
_Least = Annotated[int, msgspec.Meta(ge=0, le=_INT32_MAX)]
_Best = Annotated[int, msgspec.Meta(ge=0, le=20)] | None
"""engines allow 20 unless told otherwise (`--max-logprobs`)"""
_Stop = Annotated[str, msgspec.Meta(min_length=1)]
_StopList = Annotated[list[_Stop], msgspec.Meta(max_length=4)]
"""as many as vLLM takes unless told otherwise"""
_Stops = _Stop | _StopList | None


def _decoders(**types: object) -> dict[str, msgspec.json.Decoder[object]]:
    return {name: msgspec.json.Decoder(kind) for name, kind in types.items()}


_TEXT = _decoders(
    model=str | None,
    stream=bool | None,
    stream_options=dict[str, bool | None] | None,
    max_tokens=_Count,
    min_tokens=_Least,
    ignore_eos=bool,
    stop=_Stops,
    stop_token_ids=list[int] | None,
)
_PLAIN = {
    Api.COMPLETIONS: _TEXT | _decoders(logprobs=_Best, logprob_token_ids=list[int] | None),
    Api.CHAT: _TEXT
    | _decoders(
        max_completion_tokens=_Count,
        logprobs=bool | None,
        top_logprobs=_Best,
        logprob_token_ids=list[int] | None,
    ),
    Api.RESPONSES: _decoders(
        model=str | None,
        stream=bool | None,
        stream_options=dict[str, bool | None] | None,
        max_output_tokens=_Count,
        top_logprobs=_Best,
        ignore_eos=bool,
        stop=_Stops,
        stop_token_ids=list[int] | None,
    ),
    Api.MESSAGES: _decoders(
        model=str | None, stream=bool | None, max_tokens=_Count, stop_sequences=_StopList | None
    ),
}
"""By API the fields that the two legs have differently, with what no engine refuses there."""


class _Tool(msgspec.Struct):
    type: str = "function"


_tools = msgspec.json.Decoder(list[_Tool] | None)
_MAX_TOOLS_BYTES, _MAX_VALUE_BYTES = 1 << 20, 1 << 16
"""that are looked into; who sends more is served whole"""


def can_transfer(fields: Fields, api: Api, context_tokens: int | None = None) -> bool:
    """False: one instance serves it whole.

    `context_tokens`: of the model, prompt and answer together; None: unknown.
    """
    return not (
        api is Api.BATCH
        or _has_many_answers(fields)
        or _needs_the_prompts_own_pass(fields)
        or (api is Api.COMPLETIONS and _has_many_prompts(fields))
        or (api is not Api.COMPLETIONS and _has_remote_media(fields))
        or (api is Api.RESPONSES and _may_run_tools(fields))
        or _is_doubtful(fields, api, context_tokens)
    )


def _has_many_answers(fields: Fields) -> bool:
    return is_set(fields, "use_beam_search") or any(
        name in fields and bytes(fields[name]) not in (b"1", b"null") for name in ("n", "best_of")
    )


def _needs_the_prompts_own_pass(fields: Fields) -> bool:
    """Decode makes none over the prompt: it has its KV. And a prompt that is cut to what the answer
    leaves free would be cut differently on the two legs."""
    if is_set(fields, "echo") or _is_given(fields, "prompt_logprobs"):
        return True  # `prompt_logprobs: false` is 0 to an engine, which is a number of them
    cut = fields.get("truncate_prompt_tokens", NULL)
    return not is_null(cut) and _POSITIVE.fullmatch(memoryview(cut)) is None


def _is_given(fields: Fields, name: str) -> bool:
    raw = fields.get(name)
    return raw is not None and not is_null(raw)


_POSITIVE = re.compile(rb"[0-9]{1,9}")


def _has_many_prompts(fields: Fields) -> bool:
    """A list of strings or of token lists is many; `[1,2,3]` is one."""
    given = [fields[name] for name in ("prompt", "prompt_embeds") if _is_given(fields, name)]
    return len(given) > 1 or any(is_many(prompt, of=(b'"', b"[")) for prompt in given)


def _has_remote_media(fields: Fields) -> bool:
    """Each leg's engine would fetch it, and may get another thing each time: KV of another prompt.
    Nor does the one have what the other keeps under a `uuid`.

    In a JSON text `"image_url"` stands for a key or a whole string alone: within a longer string
    its quotes have backslashes. Letters written with escapes hide one, so they count as one.
    """
    for name in ("messages", "input"):
        raw = fields.get(name)
        if raw is None:
            continue
        text = bytes(raw)
        if name == "messages" and text.find(b"[", text.find(b"[") + 1) < 0:
            continue  # media stand in a list of parts, within the list of messages
        if b"\\u00" in text and _ESCAPED_LETTER.search(text) is not None:
            return True
        is_media = any(mark in text for mark in _MEDIA)
        if is_media and _NOT_IN_THE_BODY.search(text) is not None:
            return True
    return False


_MEDIA = (b'_url"', b'"source"', b'"uuid"', b'"file_id"')
_NOT_IN_THE_BODY = re.compile(
    rb'"(?:url|image_url|audio_url|video_url|file_url)"\s*+:\s*+"(?!data:)'
    rb'|"(?:uuid|file_id)"\s*+:'
)
_ESCAPED_LETTER = re.compile(rb"(?<!\\)(?:\\\\)*+\\u00(?:5[fF]|[46][1-9a-fA-F]|[57][0-9aA])")
"""`_` and the letters of ASCII. What encoders escape for safety (`<`, `>`, `&`) is not of them."""


def _may_run_tools(fields: Fields) -> bool:
    """An engine runs its built-in tools in rounds, all with the first one's transfer id."""
    raw = fields.get("tools")
    if raw is None:
        return False
    if len(memoryview(raw)) > _MAX_TOOLS_BYTES:
        return True
    try:
        tools = _tools.decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return True
    return any(tool.type not in ("function", "custom") for tool in tools or ())


def _is_doubtful(fields: Fields, api: Api, context_tokens: int | None) -> bool:
    """Whether an engine may refuse it for what prefill does not get to see."""
    said: dict[str, object] = {}
    plain = _PLAIN[api]
    for name, raw in fields.items():
        decoder = plain.get(name)
        if decoder is None:
            continue
        if len(memoryview(raw)) > _MAX_VALUE_BYTES:
            return True
        try:
            said[name] = decoder.decode(raw)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return True
    limit = _limit(said, api)
    if limit is not None and context_tokens is not None and limit > context_tokens:
        return True
    least = said.get("min_tokens")
    most = limit if limit is not None else context_tokens
    if isinstance(least, int) and most is not None and least > most:
        return True
    if said.get("stream_options") is not None and not is_true(fields, "stream"):
        return True
    return _asks_for_odd_logprobs(said, api)


def _limit(said: dict[str, object], api: Api) -> int | None:
    for name in ("max_completion_tokens", "max_output_tokens", "max_tokens"):
        value = said.get(name)
        if isinstance(value, int):
            return value
    return DEFAULT_MAX_TOKENS if api is Api.COMPLETIONS else None


def _asks_for_odd_logprobs(said: dict[str, object], api: Api) -> bool:
    """Details of log probabilities without asking for them; or those of named tokens, of which an
    engine may not have one."""
    if api not in (Api.COMPLETIONS, Api.CHAT):
        return False
    if said.get("logprob_token_ids"):
        return True
    asked = said.get("logprobs")
    if asked is not None and asked is not False:  # 0 of them is a number too
        return False
    return bool(said.get("top_logprobs"))
