"""The failure table: each event, and what a request that meets it comes to (design §6).

`test_rows` shows every row on a real Envoy, `document` makes docs/failures.md of them.
"""

from collections.abc import Callable
from typing import Any

from tests.failures.pool import DEFER_S, LIMITS, NIXL, PUSH_LIMIT_S, READ, WRITE, Pool
from tests.failures.row import STREAMED, WHOLE, Counts, Expected, Row, both

ENGINES_400 = {"error": {"message": "max_tokens is too large", "code": 400, "mine": [1.50]}}
ENGINES_500 = {"error": {"message": "the engine is tired", "code": 500}}

NOBODY_FETCHES = {
    "blocks": "prefill frees its blocks after its `defer_timeout`",
    "freed_within_s": DEFER_S,
}
LEASE_ENDS = {
    "blocks": "prefill frees its blocks when their lease is over",
    "freed_within_s": DEFER_S,
}
LEASE_ENDS_ORPHANED = LEASE_ENDS | {"blocks": f"orphaned: {LEASE_ENDS['blocks']}"}
PREFILL_TOLD = {"blocks": "decode tells prefill, which frees its blocks", "freed_within_s": 0.3}
TOLD_AT_ONCE = {
    "blocks": "decode's blocks are freed at once by a notice, or orphaned",
    "freed_within_s": 0.3,
    "told_after_s": 0.0,
}
TOLD_LATER = {
    "blocks": "decode's blocks are freed by a later notice, or orphaned",
    "freed_within_s": PUSH_LIMIT_S,
    "told_after_s": PUSH_LIMIT_S,
}
PUSHED = {"blocks": "decode's blocks are free when prefill has pushed"}
RELEASED = {"blocks": "prefill's blocks are freed by a notice, or orphaned"}
CLOSED = {
    "blocks": "prefill is closed; had it answered, it frees its blocks as those nobody fetches",
    "freed_within_s": DEFER_S,
}

FREED: Counts = {"released_transfers_total": {}}
ORPHANED: Counts = {"orphaned_transfers_total": {}}


def all_prefill(kind: str, **what: Any) -> Callable[[Pool], None]:
    return lambda pool: pool.fault(pool.prefill, "prefill", kind, **what)


def one_prefill(kind: str, **what: Any) -> Callable[[Pool], None]:
    return lambda pool: pool.fault(pool.prefill[:1], "prefill", kind, count=1, **what)


def all_decode(kind: str, **what: Any) -> Callable[[Pool], None]:
    return lambda pool: pool.fault(pool.decode, "decode", kind, **what)


def slow_decode(kind: str, **what: Any) -> Callable[[Pool], None]:
    """Not before prefill is known: until then the answer's headers are held (WRITE)."""

    def arrange(pool: Pool) -> None:
        pool.fault(pool.decode, "decode", kind, **what)
        for engine in pool.decode:
            engine.ask("pace", ttft_ms=500.0)

    return arrange


def refuse(role: str, count: int) -> Callable[[Pool], None]:
    def arrange(pool: Pool) -> None:
        for engine in getattr(pool, role)[:count]:
            engine.ask("faults", kind="refuse", for_s=REFUSES_S)

    return arrange


def failed(status: int, reason: str, **what: Any) -> Expected:
    return Expected(status=status, reason=reason, outcome="prefill_failed", **what)


def ends_at_decode(nixl: dict[str, Any], **what: Any) -> dict[str, Expected]:
    """Prefill has answered, and nobody fetches; `nixl`: what becomes of NIXL's blocks."""
    what = {"outcome": "decode_failed"} | what
    return {**both(**what, **NOBODY_FETCHES), NIXL: Expected(**what, **nixl)}


def retried(reason: str) -> Expected:
    return Expected(status=200, counts={"prefill_retries_total": {"reason": reason}})


LIMIT_S: float = LIMITS["prefill"]["timeout_s"]
HEADERS_S: float = LIMITS["decode"]["headers_timeout_s"]
IDLE_S: float = LIMITS["decode"]["idle_timeout_s"]
WHOLE_S: float = LIMITS["decode"]["whole_timeout_s"]

REFUSES_S = 1.0
"""long enough for the request, and then the engine can be asked what it holds"""
CUT_S = 2.0
"""Envoy closes a connection that it cuts one second later (its `delayed_close_timeout`)."""

POOL_ROWS = [
    Row(
        name="no_prefill",
        event="no prefill instance is placeable",
        arrange=lambda pool: pool.take_out(pool.prefill),
        expected=both(status=503, reason="no_prefill_instance", outcome="refused"),
    ),
    Row(
        name="no_decode",
        event="no decode instance is placeable",
        arrange=lambda pool: pool.take_out(pool.decode),
        expected=both(status=503, reason="no_decode_instance", outcome="refused"),
    ),
]
BODY_ROWS = [
    Row(
        name="body_not_json",
        event="the body is no JSON object",
        arrange=lambda _: None,
        body=b"[1, 2]",
        answers=(WHOLE,),
        expected=both(status=400, reason="body_invalid", outcome="client_error"),
    ),
    Row(
        name="body_missing",
        event="there is no body",
        arrange=lambda _: None,
        body=b"",
        answers=(WHOLE,),
        expected=both(status=400, reason="body_missing", outcome="client_error"),
    ),
    Row(
        name="body_too_large",
        event="the body is larger than `tuning.http.max_body_bytes`",
        arrange=lambda _: None,
        body=b'{"model":"sim-model","prompt":"' + b"x" * 100_000 + b'"}',
        answers=(WHOLE,),
        expected=both(status=413, reason="body_too_large", outcome="client_error"),
    ),
    Row(
        name="body_encoded",
        event="the body is compressed",
        arrange=lambda _: None,
        headers={"content-encoding": "gzip"},
        answers=(WHOLE,),
        expected=both(status=415, reason="body_encoding", outcome="client_error"),
    ),
]
PREFILL_ROWS = [
    Row(
        name="prefill_4xx",
        event="prefill answers 4xx",
        arrange=all_prefill("status", status=400, body=ENGINES_400),
        expected={
            READ: Expected(
                status=400, reason="prefill_rejected", outcome="client_error", body=ENGINES_400
            ),
            WRITE: Expected(
                status=400,
                reason="prefill_rejected",
                outcome="client_error",
                body=ENGINES_400,
                counts=FREED,
                **TOLD_AT_ONCE,
            ),
        },
    ),
    Row(
        name="prefill_refuses_one",
        event="one prefill instance refuses the connection",
        arrange=refuse("prefill", 1),
        has_own_pool=True,
        expected={READ: retried("prefill_refused")},
    ),
    Row(
        name="prefill_refuses",
        event="every prefill instance that is tried refuses the connection",
        arrange=refuse("prefill", 2),
        has_own_pool=True,
        expected={
            READ: failed(502, "prefill_refused", counts={"prefill_retries_total": {}}),
            WRITE: failed(502, "prefill_refused", counts=FREED, **TOLD_AT_ONCE),
        },
    ),
    Row(
        name="prefill_resets_one",
        event="one prefill instance resets the connection",
        arrange=one_prefill("reset"),
        requests=2,
        expected={READ: retried("prefill_reset")},
    ),
    Row(
        name="prefill_resets",
        event="every prefill instance that is tried resets the connection before it answers",
        arrange=all_prefill("reset"),
        expected={
            READ: failed(502, "prefill_reset"),
            WRITE: failed(502, "prefill_reset", counts=FREED, **TOLD_LATER),
        },
    ),
    Row(
        name="prefill_resets_late",
        event="every prefill instance that is tried resets the connection within its answer",
        arrange=all_prefill("reset", when="after"),
        expected={
            READ: failed(502, "prefill_reset", **NOBODY_FETCHES),
            NIXL: failed(502, "prefill_reset", **LEASE_ENDS),
            # Decode is told all the same: that the push came nobody says.
            WRITE: failed(502, "prefill_reset", counts=FREED, **PUSHED),
        },
    ),
    Row(
        name="prefill_5xx_one",
        event="one prefill instance answers 5xx",
        arrange=one_prefill("status", status=500, body=ENGINES_500),
        requests=2,
        expected={READ: retried("prefill_error")},
    ),
    Row(
        name="prefill_5xx",
        event="every prefill instance that is tried answers 5xx",
        arrange=all_prefill("status", status=500, body=ENGINES_500),
        expected={
            READ: failed(502, "prefill_error"),
            WRITE: failed(502, "prefill_error", counts=FREED, **TOLD_LATER),
        },
    ),
    Row(
        name="prefill_unavailable",
        event="every prefill instance that is tried is paused, or answers 503 for another reason",
        arrange=all_prefill("status", status=503),
        expected={
            READ: failed(503, "prefill_unavailable"),
            WRITE: failed(503, "prefill_unavailable", counts=FREED, **TOLD_LATER),
        },
    ),
    Row(
        name="prefill_hangs",
        event="prefill takes longer than `prefill.timeout_s`",
        arrange=all_prefill("hang"),
        expected={
            READ: failed(504, "prefill_timeout", within_s=LIMIT_S + 1),
            WRITE: failed(
                504,
                "prefill_timeout",
                within_s=LIMIT_S + 1,
                counts=FREED,
                **TOLD_LATER,
            ),
        },
    ),
    Row(
        name="prefill_slow",
        event="prefill is slow, and within its limit",
        arrange=all_prefill("slow", delay_s=0.5),
        expected=both(status=200, within_s=2.0),
    ),
    Row(
        name="prefill_ends_by_eos",
        event="prefill ends by its first token, with which MoRI-IO hands over no KV",
        arrange=all_prefill("eos"),
        expected={
            READ: Expected(status=200, counts={"recomputed_requests_total": {}}),
            NIXL: Expected(status=200, blocks="by both: KV is handed over all the same"),
            WRITE: failed(502, "prefill_without_kv", **PUSHED),
        },
    ),
    Row(
        name="prefill_without_parameters",
        event="prefill answers 200 with null KV parameters",
        arrange=all_prefill("no_kv"),
        expected={
            READ: Expected(status=200, counts={"recomputed_requests_total": {}}),
            WRITE: failed(502, "prefill_without_kv", **PUSHED),
        },
    ),
]
CONNECTOR_ROWS = [
    Row(
        name="wrong_connector",
        event="prefill's answer is of the other connector",
        arrange=lambda _: None,
        has_own_pool=True,
        has_other_connector=True,
        expected={
            READ: failed(502, "wrong_connector", counts=ORPHANED, **LEASE_ENDS_ORPHANED),
            WRITE: failed(
                502,
                "wrong_connector",
                told_after_s=0.0,
                counts=FREED,
                blocks=f"{TOLD_AT_ONCE['blocks']}; prefill's when their lease is over",
                freed_within_s=DEFER_S,
            ),
            NIXL: failed(
                502,
                "wrong_connector",
                counts=ORPHANED,
                blocks=f"orphaned: {NOBODY_FETCHES['blocks']}",
                freed_within_s=DEFER_S,
            ),
        },
    ),
]
DECODE_ROWS = [
    Row(
        name="decode_refuses_one",
        event="one decode instance refuses the connection, another is there",
        arrange=refuse("decode", 1),
        has_own_pool=True,
        expected={READ: Expected(status=200)},
    ),
    Row(
        name="decode_refuses",
        event="every decode instance that is tried refuses the connection",
        arrange=refuse("decode", 2),
        has_own_pool=True,
        expected={
            READ: Expected(
                status=503,
                reason="decode_refused",
                outcome="decode_failed",
                counts=FREED,
                **RELEASED,
            ),
            WRITE: Expected(status=503, reason="decode_refused", outcome="decode_failed", **CLOSED),
            NIXL: Expected(
                status=503,
                reason="decode_refused",
                outcome="decode_failed",
                counts=ORPHANED,
                **LEASE_ENDS_ORPHANED,
            ),
        },
    ),
    Row(
        name="decode_4xx",
        event="decode answers 4xx",
        arrange=all_decode("status", status=400, body=ENGINES_400),
        expected=ends_at_decode(PREFILL_TOLD, status=400, outcome="client_error", body=ENGINES_400),
    ),
    Row(
        name="decode_5xx",
        event="decode answers 5xx",
        arrange=all_decode("status", status=500, body=ENGINES_500),
        expected=ends_at_decode(PREFILL_TOLD, status=500, body=ENGINES_500),
    ),
    Row(
        name="decode_resets",
        event="decode breaks the connection before its headers",
        arrange=all_decode("reset"),
        expected=ends_at_decode(LEASE_ENDS, status=503, reason="decode_reset"),
    ),
    Row(
        name="decode_hangs_streamed",
        event="decode sends no headers for `decode.headers_timeout_s` (streamed)",
        arrange=all_decode("hang"),
        answers=(STREAMED,),
        expected=ends_at_decode(
            PREFILL_TOLD, status=504, reason="decode_timeout", within_s=HEADERS_S + 1
        ),
    ),
    Row(
        name="decode_hangs_whole",
        event="decode has not answered for `decode.whole_timeout_s` (not streamed)",
        arrange=all_decode("hang"),
        answers=(WHOLE,),
        expected=ends_at_decode(
            PREFILL_TOLD, status=504, reason="decode_timeout", within_s=WHOLE_S + 1
        ),
    ),
    Row(
        name="decode_stalls",
        event="a streamed answer stops for `decode.idle_timeout_s`",
        arrange=slow_decode("stall", after_tokens=2),
        answers=(STREAMED,),
        expected=both(
            status=None, reason="decode_stalled", outcome="stalled", within_s=IDLE_S + CUT_S + 0.5
        ),
    ),
    Row(
        name="decode_dies_in_mid_stream",
        event="decode dies in mid-stream",
        arrange=slow_decode("cut", after_tokens=2),
        answers=(STREAMED,),
        expected=both(
            status=None, reason="decode_cut", outcome="decode_failed", within_s=CUT_S + 0.5
        ),
    ),
]
ROWS = [*POOL_ROWS, *BODY_ROWS, *PREFILL_ROWS, *CONNECTOR_ROWS, *DECODE_ROWS]
