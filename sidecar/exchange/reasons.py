"""Why a request was not served: one closed table, from reason to reply, outcome and metric label.

The strings are also `x-pd-error` and the label `reason` (design §6); alerts and dashboards use
them.
"""

from enum import StrEnum

import msgspec

from sidecar.wire.ext_proc import ImmediateReply
from sidecar.wire.openai import error_body


class Outcome(StrEnum):
    """How an exchange ended, for `requests_total` (closed set, design §6)."""

    OK = "ok"
    CLIENT_ERROR = "client_error"
    REFUSED = "refused"
    PREFILL_FAILED = "prefill_failed"
    DECODE_FAILED = "decode_failed"
    STALLED = "stalled"
    CANCELLED = "cancelled"
    LOST = "lost"


class Reason(StrEnum):
    NO_PREFILL_INSTANCE = "no_prefill_instance"
    NO_DECODE_INSTANCE = "no_decode_instance"
    DRAINING = "draining"
    BODY_MISSING = "body_missing"
    BODY_INVALID = "body_invalid"
    BODY_TOO_LARGE = "body_too_large"
    BODY_ENCODING = "body_encoding"
    PREFILL_REFUSED = "prefill_refused"
    PREFILL_RESET = "prefill_reset"
    PREFILL_ERROR = "prefill_error"
    PREFILL_REJECTED = "prefill_rejected"
    PREFILL_TIMEOUT = "prefill_timeout"
    PREFILL_WITHOUT_KV = "prefill_without_kv"
    INTERNAL = "internal"


class Row(msgspec.Struct, frozen=True):
    status: int
    outcome: Outcome
    kind: str
    """OpenAI's `error.type`"""
    message: str
    retry_after_s: int | None = None


OWN_REPLY = "own"
"""Metadata `pd.reply` of answers about ourselves (readiness, models): no exchange, counted nowhere,
or health checks would drown the traffic."""

TABLE: dict[Reason, Row] = {
    Reason.NO_PREFILL_INSTANCE: Row(
        503, Outcome.REFUSED, "service_unavailable", "No prefill instance is ready.", 1
    ),
    Reason.NO_DECODE_INSTANCE: Row(
        503, Outcome.REFUSED, "service_unavailable", "No decode instance is ready.", 1
    ),
    Reason.DRAINING: Row(
        503, Outcome.REFUSED, "service_unavailable", "This router is shutting down.", 1
    ),
    Reason.BODY_MISSING: Row(
        400, Outcome.CLIENT_ERROR, "invalid_request_error", "This path needs a JSON body."
    ),
    Reason.BODY_INVALID: Row(
        400, Outcome.CLIENT_ERROR, "invalid_request_error", "The body is not a JSON object."
    ),
    Reason.BODY_TOO_LARGE: Row(
        413, Outcome.CLIENT_ERROR, "invalid_request_error", "The body is larger than the limit."
    ),
    Reason.BODY_ENCODING: Row(
        415,
        Outcome.CLIENT_ERROR,
        "invalid_request_error",
        "The body must not be compressed: send it without Content-Encoding.",
    ),
    Reason.PREFILL_REFUSED: Row(
        503, Outcome.PREFILL_FAILED, "service_unavailable", "The prefill instance refused.", 1
    ),
    Reason.PREFILL_RESET: Row(
        502, Outcome.PREFILL_FAILED, "bad_gateway", "The prefill instance broke the connection."
    ),
    Reason.PREFILL_ERROR: Row(
        502, Outcome.PREFILL_FAILED, "bad_gateway", "The prefill instance answered an error."
    ),
    # The body and status are the engine's own; this row gives the outcome alone.
    Reason.PREFILL_REJECTED: Row(
        400, Outcome.CLIENT_ERROR, "invalid_request_error", "The prefill instance refused the body."
    ),
    Reason.PREFILL_TIMEOUT: Row(
        504, Outcome.PREFILL_FAILED, "gateway_timeout", "Prefill took longer than its limit."
    ),
    Reason.PREFILL_WITHOUT_KV: Row(
        502, Outcome.PREFILL_FAILED, "bad_gateway", "Prefill handed over no KV blocks."
    ),
    # A fault of the router must not send anyone to look at a prefill instance.
    Reason.INTERNAL: Row(
        500, Outcome.REFUSED, "internal_error", "The router failed; its log has the reason."
    ),
}


def refusal(
    reason: Reason, *, detail: str = "", echo: dict[str, str] | None = None
) -> ImmediateReply:
    """The answer for `reason`, in OpenAI's error shape.

    `detail` replaces the table's message; `echo` are headers that every answer carries.
    """
    row = TABLE[reason]
    headers = {"content-type": "application/json", "x-pd-error": reason.value, **(echo or {})}
    if row.retry_after_s is not None:
        headers["retry-after"] = str(row.retry_after_s)
    return ImmediateReply(
        status=row.status,
        body=error_body(detail or row.message, row.kind, reason.value),
        headers=headers,
        metadata={"reply": reason.value},
    )
