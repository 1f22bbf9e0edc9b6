"""What of a request can be judged before anything is placed: headers, then body. Pure functions."""

import msgspec

from sidecar.exchange.reasons import Reason
from sidecar.exchange.situation import Limits, Situation
from sidecar.wire import kv_transfer, openai
from sidecar.wire.ext_proc import RequestHeaders


class Refusal(msgspec.Struct, frozen=True):
    """A refusal is a value; `detail` replaces the table's message where it can say more."""

    reason: Reason
    detail: str = ""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """The client's request, parsed."""

    exchange: str
    api: openai.Api
    headers: dict[str, str]
    fields: openai.Fields
    model: str
    is_streaming: bool
    body_bytes: int


def refuse_headers(
    event: RequestHeaders, api: openai.Api | None, situation: Situation, limits: Limits
) -> Refusal | None:
    """Why to refuse before a byte of the body is buffered; None: go on."""
    if situation.is_draining:
        return Refusal(Reason.DRAINING)
    if api is None:
        return None
    if not situation.has_prefill:
        return Refusal(Reason.NO_PREFILL_INSTANCE)
    if not situation.has_decode:
        return Refusal(Reason.NO_DECODE_INSTANCE)
    if event.is_last:
        return Refusal(Reason.BODY_MISSING)
    encoding = event.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        return Refusal(Reason.BODY_ENCODING)
    return _refuse_size(_content_length(event.headers.get("content-length", "")), limits)


def _content_length(text: str) -> int:
    """0 for what is not one: the body's own size is checked in any case."""
    return int(text) if text.isdecimal() and len(text) < 20 else 0


def read_request(
    exchange: str, api: openai.Api, headers: dict[str, str], body: bytes, limits: Limits
) -> Request | Refusal:
    """The parsed request, without the fields that only a router may set."""
    too_large = _refuse_size(len(body), limits)
    if too_large is not None:
        return too_large
    try:
        fields = kv_transfer.without_forbidden(openai.split(body))
    except openai.BodyError as error:
        return Refusal(Reason.BODY_INVALID, str(error))
    return Request(
        exchange=exchange,
        api=api,
        headers=headers,
        fields=fields,
        model=openai.text(fields, "model") or "",
        is_streaming=openai.is_true(fields, "stream"),
        body_bytes=len(body),
    )


def _refuse_size(size: int, limits: Limits) -> Refusal | None:
    limit = limits.max_body_bytes
    if size <= limit:
        return None
    detail = f"The body has {size} bytes; the limit is {limit} (tuning.http.max_body_bytes)."
    return Refusal(Reason.BODY_TOO_LARGE, detail)
