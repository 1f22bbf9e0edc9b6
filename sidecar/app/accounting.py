"""Accounts for exchanges: the ledger's facts, turned into the metric families and `/exchanges`.

The ledger decides what is open; this only counts what it says.
"""

import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

from sidecar.app import evidence
from sidecar.exchange.ledger import Closed, Ledger, Open
from sidecar.exchange.reasons import OWN_REPLY, Outcome, Reason
from sidecar.exchange.records import (
    Batch,
    Moved,
    Placed,
    PrefillEnded,
    Record,
    Refused,
    Replied,
    TransferFailed,
)
from sidecar.routing.slots import Slot
from sidecar.routing.standing import Evidence
from sidecar.telemetry.metrics import Metrics
from sidecar.telemetry.repeated import Repeated
from sidecar.wire.access_log import Entry

log = logging.getLogger(__name__)

EARLY_S = 2.0
"""An end entry waits so long for the records of its worker, which come within 50 ms while all is
well."""


class Accounting:
    def __init__(self, ledger: Ledger, metrics: Metrics, prefill_timeout_s: float) -> None:
        """`prefill_timeout_s`: of all attempts of one exchange together."""
        self.ledger = ledger
        self._prefill_timeout_s = prefill_timeout_s
        self._metrics = metrics
        self.placed: Counter[tuple[str, Slot]] = Counter()
        """(role, slot) -> requests placed since start"""
        self.outcomes: Counter[str] = Counter()
        self.on_evidence: Callable[[Evidence], None] = lambda _: None
        """called with how each prefill leg went"""
        self.knows: Callable[[str], bool] = lambda _: True
        """whether an instance of that address is in the pool"""
        self.on_closed: Callable[[Closed], None] = lambda _: None
        self._failures = Repeated()
        self._early: dict[str, tuple[Entry, float]] = {}
        """end entries that overtook their worker's records, with the time they came"""

    # --- from the workers

    def batch(self, batch: Batch, now: float) -> None:
        for record in batch.records:
            self.note(record, now)
        self._metrics.records_dropped.inc(batch.dropped)
        self._metrics.unlocked_picks.inc(batch.unlocked_picks)

    def note(self, record: Record, now: float) -> None:
        if isinstance(record, Placed):
            self._placed(record)
        elif isinstance(record, PrefillEnded):
            self._prefill_ended(record, now)
        elif isinstance(record, Moved):
            self._count("decode", record.decode)
        elif isinstance(record, Replied):
            self._replied(record)
        elif isinstance(record, TransferFailed):
            self.freed(record.decode, is_freed=record.is_freed)
        self.ledger.note(record, now)
        if isinstance(record, Replied | Refused):
            early = self._early.pop(record.exchange, None)
            if early is not None:
                self._report(early[0], now)

    def _placed(self, record: Placed) -> None:
        before = self.ledger.find(record.exchange)
        if before is not None and before.prefill_reason is not None and before.placed.prefill:
            address = before.placed.prefill.address
            self._metrics.prefill_retries.labels(address, before.prefill_reason).inc()
        elif before is not None and record.mode is None and record.prefill is not None:
            self._metrics.recomputed.labels(record.prefill.address).inc()
        self._metrics.placement.observe(record.placement_s)
        for role, slot in (("prefill", record.prefill), ("decode", record.decode)):
            if slot is not None:
                self._count(role, slot)

    def _count(self, role: str, slot: Slot) -> None:
        self.placed[role, slot] += 1
        self._metrics.placements.labels(role, slot.address, str(slot.dp_rank)).inc()

    def _prefill_ended(self, record: PrefillEnded, now: float) -> None:
        entry = self.ledger.find(record.exchange)
        if entry is None or entry.placed.prefill is None or record.seconds is None:
            return
        slot = entry.placed.prefill
        told = evidence.of_prefill(
            slot, record.reason, entry.since, record.seconds, self._prefill_timeout_s
        )
        if told is not None:
            self.on_evidence(told)
        if record.reason is None:
            labels = (slot.address, str(slot.dp_rank))
            self._metrics.prefill_duration.labels(*labels).observe(record.seconds)
        elif record.reason is not Reason.PREFILL_REJECTED:  # that one is the client's fault
            self._say_failure(entry.placed, slot, record.reason, now)

    def _say_failure(self, placed: Placed, slot: Slot, reason: Reason, now: float) -> None:
        unsaid = self._failures.unsaid(f"{slot.address} {reason}", now)
        if unsaid is not None:
            more = f" ({unsaid} more like it)" if unsaid else ""
            where, request = f"{slot.address}#{slot.dp_rank}", placed.request_id
            log.warning("prefill at %s: %s, request %s%s", where, reason, request, more)

    def _replied(self, record: Replied) -> None:
        if record.overhead_s is not None:
            self._metrics.overhead.observe(record.overhead_s)
        entry = self.ledger.find(record.exchange)
        if entry is None or record.gap_s is None or entry.placed.prefill is None:
            return
        if entry.placed.is_in_series:
            slot = entry.placed.prefill
            self._metrics.gap.labels(slot.address, str(slot.dp_rank)).observe(record.gap_s)

    # --- from the access log, and from time

    def entry(self, entry: Entry, now: float) -> None:
        """Take an access log entry. An end waits for its worker's records, or its measurements
        would be lost: Envoy's batches and the workers' are sent at their own times."""
        is_early = entry.is_end and entry.exchange and not self.ledger.is_told(entry.exchange)
        if is_early and entry.reply != OWN_REPLY:
            self._early[entry.exchange] = (entry, now)
        else:
            self._report(entry, now)

    def _report(self, entry: Entry, now: float) -> None:
        closed = self.ledger.report(entry, now)
        if closed is not None:
            self.close(closed)

    def sweep(self, now: float) -> None:
        """To be called a few times a second: close what is lost, and ends whose records never come
        (the worker died, or the client left while it uploaded)."""
        for entry, came in list(self._early.values()):
            if now - came > EARLY_S:
                del self._early[entry.exchange]
                self._report(entry, now)
        lost = self.ledger.sweep(now)
        for closed in lost:
            self.close(closed)
        if any(closed.outcome is Outcome.LOST for closed in lost):
            log.warning("%d exchanges closed as lost: no report names them any more", len(lost))

    def envoy_gone(self, now: float) -> int:
        """Envoy died: close all it had; returns how many."""
        for entry, _ in self._early.values():
            self._report(entry, now)
        self._early.clear()
        lost = self.ledger.envoy_gone(now)
        for closed in lost:
            self.close(closed)
        return len(lost)

    def close(self, closed: Closed) -> None:
        self.outcomes[closed.outcome] += 1
        model = self._metrics.model(closed.model)
        self._metrics.requests.labels(model, closed.api, closed.outcome).inc()
        if closed.outcome is Outcome.LOST:
            self._metrics.lost.inc()
        if closed.reason is not None:
            self._metrics.refusals.labels(closed.reason).inc()
        self.on_closed(closed)
        entry = closed.entry
        if entry is None:
            return
        if closed.outcome is Outcome.CANCELLED:
            phase = closed.client_phase or ("decode" if closed.placed is not None else "upload")
            self._metrics.cancellations.labels(phase).inc()
        streaming = "true" if closed.is_streaming else "false"
        if entry.total_s is not None and closed.outcome is Outcome.OK:
            self._metrics.request_duration.labels(model, streaming).observe(entry.total_s)
            self._decode_duration(closed, entry.total_s)
        if entry.first_byte_s is not None and closed.outcome is Outcome.OK:
            self._metrics.first_token.labels(model, streaming).observe(entry.first_byte_s)

    def _decode_duration(self, closed: Closed, total_s: float) -> None:
        if closed.placed is None or closed.placed.decode is None:
            return
        slot = closed.placed.decode
        before = closed.prefill_s or 0.0 if closed.placed.is_in_series else 0.0
        labels = (slot.address, str(slot.dp_rank))
        self._metrics.decode_duration.labels(*labels).observe(max(0.0, total_s - before))

    def freed(self, slot: Slot, *, is_freed: bool) -> None:
        """A transfer left its blocks at that slot: freed by a notice of ours, or not."""
        if self.knows(slot.address):  # else the series of an instance that is gone would be back
            family = self._metrics.released if is_freed else self._metrics.orphaned
            family.labels(slot.address).inc()

    def forget_instance(self, address: str) -> None:
        """Drop its counts and series; to be called when no open exchange uses it any more."""
        for key in [key for key in self.placed if key[1].address == address]:
            del self.placed[key]
        self._metrics.forget_instance(address)

    def exchanges(self, now: float) -> list[dict[str, Any]]:
        """The open exchanges, oldest first, for `/exchanges`."""
        return [
            {
                "exchange": entry.placed.exchange,
                "request_id": entry.placed.request_id,
                "age_s": round(now - entry.since, 3),
                "api": entry.placed.api,
                "model": entry.placed.model,
                "is_streaming": entry.placed.is_streaming,
                "mode": entry.placed.mode or "aggregated",
                "worker": entry.placed.worker,
                "prefill": _slot(entry.placed.prefill),
                "decode": _slot(entry.placed.decode),
                "holds": [r for r in ("prefill", "decode") if getattr(entry, r) is not None],
                "phase": _phase(entry),
                "is_adopted": entry.is_adopted,
            }
            for entry in self.ledger
        ]


def _phase(entry: Open) -> str:
    if entry.is_prefill_running:
        return "prefill_alone"
    if entry.is_with_log:
        return "decode"
    return "prefill" if entry.prefill is not None else "placed"


def _slot(slot: Slot | None) -> str | None:
    return None if slot is None else f"{slot.address}#{slot.dp_rank}"
