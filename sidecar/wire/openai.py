"""OpenAI-style requests: the JSON body split at its top level, and what its fields decide.

Values stay raw bytes (`msgspec.Raw`): a 1 MB prompt is scanned once, never decoded or re-encoded,
so everything that shapes the prompt is byte-identical on both legs (protocol c). Knows nothing of
instances or of Envoy.
"""

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

    `n > 1`, beam search, `echo`, `prompt_logprobs`, and several prompts in one request.
    """
    n = fields.get("n")
    if n is not None and bytes(n).strip() not in (b"1", b"null"):
        return True
    if any(is_set(fields, name) for name in ("use_beam_search", "echo", "prompt_logprobs")):
        return True
    return api is Api.COMPLETIONS and _has_many_prompts(fields.get("prompt"))


def _has_many_prompts(prompt: msgspec.Raw | None) -> bool:
    """A list of strings or of token lists with more than one entry; `[1,2,3]` is one prompt."""
    if prompt is None or bytes(memoryview(prompt)[:64]).lstrip()[:1] != b"[":
        return False
    try:
        items = msgspec.json.decode(prompt, type=list[msgspec.Raw])
    except msgspec.DecodeError:
        return False
    return len(items) > 1 and bytes(items[0]).lstrip()[:1] in (b'"', b"[")


def error_body(message: str, kind: str, code: str | int, param: str | None = None) -> bytes:
    """An error in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`."""
    return msgspec.json.encode(
        {"error": {"message": message, "type": kind, "param": param, "code": code}}
    )
