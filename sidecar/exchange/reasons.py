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
    MODEL_MISSING = "model_missing"
    STORED_RESPONSE = "stored_response"
    TOO_MANY_BODY_BYTES = "too_many_body_bytes"
    PREFILL_REFUSED = "prefill_refused"
    PREFILL_UNREACHABLE = "prefill_unreachable"
    PREFILL_RESET = "prefill_reset"
    PREFILL_ERROR = "prefill_error"
    PREFILL_UNAVAILABLE = "prefill_unavailable"
    PREFILL_REJECTED = "prefill_rejected"
    PREFILL_TIMEOUT = "prefill_timeout"
    PREFILL_WITHOUT_KV = "prefill_without_kv"
    WRONG_CONNECTOR = "wrong_connector"
    INTERNAL = "internal"
    # From here on Envoy answers, or can only cut the stream.
    DECODE_REFUSED = "decode_refused"
    DECODE_RESET = "decode_reset"
    DECODE_TIMEOUT = "decode_timeout"
    DECODE_STALLED = "decode_stalled"
    DECODE_CUT = "decode_cut"
    INSTANCE_GONE = "instance_gone"
    OVERLOADED = "overloaded"
    NO_WORKER = "no_worker"
    WORKER_TIMEOUT = "worker_timeout"
    UPLOAD_TIMEOUT = "upload_timeout"


class Row(msgspec.Struct, frozen=True):
    status: int | None
    """None: the answer's own status has gone out before, and the stream can only be cut"""
    outcome: Outcome
    kind: str
    """OpenAI's `error.type`"""
    message: str
    is_envoys: bool = False
    """Envoy answers it (`local_reply_config` in envoy/listener.yaml has the same words)"""

    @property
    def retry_after_s(self) -> int | None:
        """Every 503 and 429 says when to come again: it may be served by then."""
        return 1 if self.status in (429, 503) else None


OWN_REPLY = "own"
"""Metadata `pd.reply` of answers about ourselves (readiness, models): no exchange, counted nowhere,
or health checks would drown the traffic."""

_CLIENT, _REFUSED = Outcome.CLIENT_ERROR, Outcome.REFUSED
_PREFILL, _DECODE = Outcome.PREFILL_FAILED, Outcome.DECODE_FAILED
_INVALID, _UNAVAILABLE = "invalid_request_error", "service_unavailable"
_GATEWAY, _LATE = "bad_gateway", "gateway_timeout"

# fmt: off
TABLE: dict[Reason, Row] = {
    Reason.NO_PREFILL_INSTANCE: Row(503, _REFUSED, _UNAVAILABLE, "No prefill instance is ready."),
    Reason.NO_DECODE_INSTANCE: Row(503, _REFUSED, _UNAVAILABLE, "No decode instance is ready."),
    Reason.DRAINING: Row(503, _REFUSED, _UNAVAILABLE, "This router is shutting down."),
    Reason.BODY_MISSING: Row(400, _CLIENT, _INVALID, "This path needs a JSON body."),
    Reason.BODY_INVALID: Row(400, _CLIENT, _INVALID, "The body is not what this path takes."),
    Reason.BODY_TOO_LARGE: Row(413, _CLIENT, _INVALID, "The body is larger than the limit."),
    Reason.BODY_ENCODING: Row(
        415, _CLIENT, _INVALID,
        "The body must not be compressed: send it without Content-Encoding.",
    ),
    Reason.MODEL_MISSING: Row(
        400, _CLIENT, _INVALID, "This pool serves several models: name one in `model`."
    ),
    Reason.STORED_RESPONSE: Row(
        400, _CLIENT, _INVALID, "Responses are not kept behind this router."
    ),
    Reason.TOO_MANY_BODY_BYTES: Row(
        429, _REFUSED, "rate_limit_error",
        "Too many bytes of prompts wait for prefill (tuning.http.max_body_bytes_in_flight).",
    ),
    Reason.PREFILL_REFUSED: Row(502, _PREFILL, _GATEWAY, "The prefill instance refused."),
    Reason.PREFILL_UNREACHABLE: Row(
        502, _PREFILL, _GATEWAY, "The prefill instance took no connection in time."
    ),
    Reason.PREFILL_RESET: Row(
        502, _PREFILL, _GATEWAY, "The prefill instance broke the connection."
    ),
    Reason.PREFILL_ERROR: Row(502, _PREFILL, _GATEWAY, "The prefill instance answered an error."),
    Reason.PREFILL_UNAVAILABLE: Row(
        503, _PREFILL, _UNAVAILABLE, "The prefill instance cannot serve now."
    ),
    # The body and status are the engine's own; this row gives the outcome alone.
    Reason.PREFILL_REJECTED: Row(
        400, _CLIENT, _INVALID, "The prefill instance refused the body."
    ),
    Reason.PREFILL_TIMEOUT: Row(504, _PREFILL, _LATE, "Prefill took longer than its limit."),
    Reason.PREFILL_WITHOUT_KV: Row(502, _PREFILL, _GATEWAY, "Prefill handed over no KV blocks."),
    Reason.WRONG_CONNECTOR: Row(
        502, _PREFILL, _GATEWAY,
        "The prefill instance has another KV connector than this router (connector).",
    ),
    # A fault of the router must not send anyone to look at a prefill instance.
    Reason.INTERNAL: Row(
        500, _REFUSED, "internal_error", "The router failed; its log has the reason."
    ),

    Reason.DECODE_REFUSED: Row(
        503, _DECODE, _UNAVAILABLE, "The instance refused the connection.", is_envoys=True
    ),
    Reason.DECODE_RESET: Row(
        503, _DECODE, _UNAVAILABLE, "The instance broke the connection.", is_envoys=True
    ),
    Reason.DECODE_TIMEOUT: Row(
        504, _DECODE, _LATE, "The instance took longer than its limit.", is_envoys=True
    ),
    Reason.DECODE_STALLED: Row(
        None, Outcome.STALLED, "", "The answer stopped for longer than its limit.", is_envoys=True
    ),
    Reason.DECODE_CUT: Row(
        None, _DECODE, "", "The instance broke the connection within its answer.", is_envoys=True
    ),
    Reason.INSTANCE_GONE: Row(
        503, _DECODE, _UNAVAILABLE, "The chosen instance is not known any more.", is_envoys=True
    ),
    Reason.OVERLOADED: Row(
        503, _REFUSED, _UNAVAILABLE, "Too many requests are open or waiting.", is_envoys=True
    ),
    Reason.NO_WORKER: Row(
        503, _REFUSED, _UNAVAILABLE, "No worker of the router answers.", is_envoys=True
    ),
    Reason.WORKER_TIMEOUT: Row(
        504, _REFUSED, _LATE, "The router's worker took longer than its limit.", is_envoys=True
    ),
    Reason.UPLOAD_TIMEOUT: Row(
        408, _CLIENT, _INVALID, "The upload took longer than its limit.", is_envoys=True
    ),
}
# fmt: on


def refusal(
    reason: Reason,
    *,
    detail: str = "",
    param: str | None = None,
    echo: dict[str, str] | None = None,
) -> ImmediateReply:
    """The answer for `reason`, in OpenAI's error shape.

    `detail` replaces the table's message, `param` names the field at fault; `echo` are headers that
    every answer carries.
    """
    row = TABLE[reason]
    assert row.status is not None, f"{reason} has no answer"
    headers = {"content-type": "application/json", "x-pd-error": reason.value, **(echo or {})}
    if row.retry_after_s is not None:
        headers["retry-after"] = str(row.retry_after_s)
    return ImmediateReply(
        status=row.status,
        body=error_body(detail or row.message, row.kind, reason.value, param),
        headers=headers,
        metadata={"reply": reason.value},
    )
