"""What of a request can be judged before anything is placed: headers, then body. Pure functions."""

from collections.abc import Callable
from typing import TypeVar

import msgspec

from sidecar.exchange.reasons import Reason
from sidecar.exchange.situation import Limits, Situation
from sidecar.wire import form, openai
from sidecar.wire.ext_proc import RequestHeaders
from sidecar.wire.forbidden import without_forbidden
from sidecar.wire.paths import Api, takes_form
from sidecar.wire.transferable import can_transfer

T = TypeVar("T")


class Refusal(msgspec.Struct, frozen=True):
    """A refusal is a value; `detail` replaces the table's message where it can say more."""

    reason: Reason
    detail: str = ""
    param: str | None = None
    """the field of the body that is at fault"""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """The client's request, parsed."""

    exchange: str
    api: Api
    headers: dict[str, str]
    fields: openai.Fields
    model: str
    """as the client wrote it; empty: it named none"""
    is_streaming: bool
    can_transfer: bool
    """False: one instance serves it whole"""


def refuse_headers(
    event: RequestHeaders, api: Api | None, situation: Situation, limits: Limits
) -> Refusal | None:
    """Why to refuse before a byte of the body is buffered; None: go on."""
    if situation.is_draining:
        return Refusal(Reason.DRAINING)
    if api is None:
        return None
    if api is not Api.BATCH and not situation.has_prefill:
        return Refusal(Reason.NO_PREFILL_INSTANCE)
    if api is not Api.BATCH and not situation.has_decode:
        return Refusal(Reason.NO_DECODE_INSTANCE)
    if event.is_last:
        return Refusal(Reason.BODY_MISSING)
    return refuse_body_headers(event, limits)


def refuse_body_headers(event: RequestHeaders, limits: Limits) -> Refusal | None:
    """Of a request whose body will be read here."""
    encoding = event.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        return Refusal(Reason.BODY_ENCODING)
    return refuse_declared_size(event, limits)


def refuse_declared_size(event: RequestHeaders, limits: Limits) -> Refusal | None:
    return _refuse_size(declared_bytes(event) or 0, limits)


def declared_bytes(event: RequestHeaders) -> int | None:
    """The size of the body, by its `content-length`. None for what is no number: the body's own
    size is checked in any case."""
    text = event.headers.get("content-length", "")
    return int(text) if text.isdecimal() and len(text) < 20 else None


def read_request(
    exchange: str,
    api: Api,
    headers: dict[str, str],
    body: bytes,
    situation: Situation,
    limits: Limits,
) -> Request | Refusal:
    """The parsed request, without the fields that only a router may set."""
    fields = _parsed(body, limits, lambda: without_forbidden(openai.split(body)))
    if isinstance(fields, Refusal):
        return fields
    model = openai.text(fields, "model") or ""
    refused = _refuse_model(model, situation) or _refuse_storing(fields, api)
    if refused is not None:
        return refused
    return Request(
        exchange=exchange,
        api=api,
        headers=headers,
        fields=fields,
        model=model,
        is_streaming=openai.is_true(fields, "stream"),
        can_transfer=can_transfer(fields, api, situation.context_tokens(model)),
    )


def read_model(
    path: str, headers: dict[str, str], body: bytes, situation: Situation, limits: Limits
) -> str | Refusal:
    """The model that a single-instance path's body names; empty: none, and there is but one.

    A form has no fields that only a router may set."""
    kind = headers.get("content-type", "")

    def named() -> str:
        if takes_form(path):
            return form.model_of(kind, body)
        return openai.text(openai.split(body), "model") or ""

    model = _parsed(body, limits, named)
    if isinstance(model, Refusal):
        return model
    return _refuse_model(model, situation) or model


def _parsed(body: bytes, limits: Limits, parse: Callable[[], T]) -> T | Refusal:
    too_large = _refuse_size(len(body), limits)
    if too_large is not None:
        return too_large
    try:
        return parse()
    except openai.BodyError as error:
        return Refusal(Reason.BODY_INVALID, str(error))


def _refuse_model(model: str, situation: Situation) -> Refusal | None:
    if model or situation.default_model is not None:
        return None
    names = ", ".join(situation.models)
    detail = f"This pool serves several models: name one in `model` ({names})."
    return Refusal(Reason.MODEL_MISSING, detail, param="model")


def _refuse_storing(fields: openai.Fields, api: Api) -> Refusal | None:
    """An answer that is kept is kept by one engine, which no later request would find again."""
    if api is not Api.RESPONSES:
        return None
    for name in ("store", "background", "previous_response_id"):
        if openai.is_set(fields, name):
            detail = f"Responses are not kept behind this router: leave out `{name}`."
            return Refusal(Reason.STORED_RESPONSE, detail, param=name)
    return None


def _refuse_size(size: int, limits: Limits) -> Refusal | None:
    limit = limits.max_body_bytes
    if size <= limit:
        return None
    detail = f"The body has {size} bytes; the limit is {limit} (tuning.http.max_body_bytes)."
    return Refusal(Reason.BODY_TOO_LARGE, detail)
