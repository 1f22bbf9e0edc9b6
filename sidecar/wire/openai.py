"""OpenAI-style requests: the JSON body split at its top level, and what its fields decide.

Values stay raw bytes (`msgspec.Raw`): a 1 MB prompt is scanned once, never decoded or re-encoded,
so everything that shapes the prompt is byte-identical on both legs (protocol c). Knows nothing of
instances or of Envoy.
"""

import re
from enum import StrEnum

import msgspec

Fields = dict[str, msgspec.Raw]
"""A JSON object's members: name -> raw JSON value. Of a repeated key the last counts, as in
vLLM."""

TRUE, FALSE, NULL, ONE = (msgspec.Raw(v) for v in (b"true", b"false", b"null", b"1"))


class Api(StrEnum):
    """The paths that are served by prefill and decode together (protocol h)."""

    COMPLETIONS = "completions"
    CHAT = "chat_completions"
    RESPONSES = "responses"
    MESSAGES = "messages"


SUFFIX = {
    Api.COMPLETIONS: "/completions",
    Api.CHAT: "/chat/completions",
    Api.RESPONSES: "/responses",
    Api.MESSAGES: "/messages",
}
"""What follows an instance's base URL (which ends in `/v1`)."""

_API_BY_PATH = {"/v1" + suffix: api for api, suffix in SUFFIX.items()}

CLIENT_FORBIDDEN = ("kv_transfer_params", "ec_transfer_params", "request_id")
"""Fields a client must not set: engines dial the hosts they name (protocol f14)."""


class BodyError(ValueError):
    """The body is not one JSON object. The text says where, for the client to read."""


def api_of(path: str) -> Api | None:
    """The P/D API of a request path (query string ignored); None: a single-instance path."""
    return _API_BY_PATH.get(path.partition("?")[0])


def split(body: bytes) -> Fields:
    """Split a JSON object at its top level. Raises BodyError with a reason a client understands."""
    try:
        fields = _DECODER.decode(body)
    except RecursionError:
        raise BodyError("the JSON body is nested too deeply") from None
    except msgspec.ValidationError:
        raise BodyError("the body must be one JSON object") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BodyError(f"the body is not valid JSON: {error}") from None
    return fields


_DECODER = msgspec.json.Decoder(Fields)


def join(fields: Fields) -> bytes:
    """The inverse of `split`: one JSON object, members in order, values as they are."""
    encode = msgspec.json.encode
    return b"{" + b",".join([encode(k) + b":" + bytes(v) for k, v in fields.items()]) + b"}"


def text(fields: Fields, name: str) -> str | None:
    """A member that is a JSON string, decoded; None if it is absent or of another type."""
    raw = fields.get(name)
    if raw is None or bytes(raw).lstrip()[:1] != b'"':
        return None
    try:
        return msgspec.json.decode(raw, type=str)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def is_true(fields: Fields, name: str) -> bool:
    raw = fields.get(name)
    return raw is not None and bytes(raw).strip() == b"true"


def is_set(fields: Fields, name: str) -> bool:
    """Present and neither null nor false."""
    raw = fields.get(name)
    return raw is not None and bytes(raw).strip() not in (b"null", b"false")


def needs_one_instance(fields: Fields, api: Api) -> bool:
    """Whether one transfer id cannot carry this request (protocol h): it is served aggregated.

    `n > 1`, `best_of > 1`, beam search, `echo`, `prompt_logprobs`, and several prompts in one
    request.
    """
    if any(_is_many(fields.get(name)) for name in ("n", "best_of")):
        return True
    if any(is_set(fields, name) for name in ("use_beam_search", "echo", "prompt_logprobs")):
        return True
    if api is not Api.COMPLETIONS:
        return False
    return sum(_count_prompts(fields.get(name)) for name in ("prompt", "prompt_embeds")) > 1


def _is_many(count: msgspec.Raw | None) -> bool:
    """Not surely one: what is no number is for the engine to refuse, without a transfer."""
    return count is not None and bytes(count) not in (b"1", b"null")


def _count_prompts(prompt: msgspec.Raw | None) -> int:
    """How many prompts: a list of strings or of token lists is many; `[1,2,3]` is one."""
    # A view: a prompt of 1 MB is not to be copied for a look at its start.
    view = memoryview(NULL if prompt is None else prompt)
    first = _first(view)
    if first == b"n":
        return 0
    if first != b"[" or _first(view[1:]) not in (b'"', b"["):
        return 1
    try:
        return len(msgspec.json.decode(view, type=list[msgspec.Raw]))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return 1


def _first(value: memoryview) -> bytes:
    """The first byte that is not white space."""
    match = _NOT_BLANK.search(value)
    return match[0] if match else b""


_NOT_BLANK = re.compile(rb"[^ \t\r\n]")


def error_body(message: str, kind: str, code: str | int, param: str | None = None) -> bytes:
    """An error in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`."""
    return msgspec.json.encode(
        {"error": {"message": message, "type": kind, "param": param, "code": code}}
    )
