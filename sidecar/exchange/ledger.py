"""The ledger of open exchanges: which slots are in use, and who will release them (design §3).

A worker owns both slots until its last reply; with that the decode slot passes to the access log.
Entries of the access log can be lost while the log server is away, so Envoy reports every open
stream again and again: one that no report names for 2.5 intervals is closed as lost, one that is
named but unknown is adopted. Pure; `now` is monotonic seconds. Invariant: each slot's count is the
number of entries that hold it, and every exchange is closed once.
"""

from collections import Counter
from collections.abc import Iterator

import msgspec

from sidecar.exchange.envoys_ends import outcome_of, reason_of
from sidecar.exchange.reasons import OWN_REPLY, TABLE, Outcome, Reason
from sidecar.exchange.records import (
    Hello,
    Moved,
    Placed,
    PrefillEnded,
    Record,
    Refused,
    Replied,
    Spare,
    TransferFailed,
)
from sidecar.routing.slots import Slot
from sidecar.wire.access_log import Entry, Trail

MEMORY_S = 60.0
"""how long the id of an ended exchange is remembered: its records may arrive after its end"""
PATIENCE_INTERVALS = 2.5
"""Two reports may be missed. Less than three, because counts must be right within three intervals
of a crash, and the half is for the restart itself."""


class Open(msgspec.Struct, kw_only=True):
    """One open exchange. Changed in place by the ledger alone."""

    placed: Placed
    since: float
    named: float
    """when the worker or a report last spoke of it"""
    prefill: Slot | None
    """held, else None"""
    decode: Slot | None
    is_with_log: bool = False
    """the worker is done with it: only the access log will end it"""
    is_adopted: bool = False
    is_prefill_running: bool = False
    """its client is gone, its prefill leg goes on: that slot outlives the exchange"""
    spare: Spare | None = None
    reason: Reason | None = None
    client_phase: str = ""
    prefill_s: float | None = None
    prefill_reason: Reason | None = None
    """why the last prefill leg failed, if it did"""
    kv_since: float | None = None
    """since when prefill holds KV blocks for decode"""


class Closed(msgspec.Struct, frozen=True, kw_only=True):
    """An exchange that has ended: all that metrics ask about it."""

    placed: Placed | None
    """None: refused before it was placed, or never seen"""
    api: str
    model: str
    is_streaming: bool
    outcome: Outcome
    reason: Reason | None
    client_phase: str = ""
    entry: Entry | None = None
    prefill_s: float | None = None
    orphaned_since: float | None = None
    """since when prefill holds KV for which no decode instance was reached; None: it holds none"""
    since: float = 0.0
    """when it was placed"""


class Ledger:
    """All open exchanges. Each method that ends some returns them as `Closed`, each once."""

    def __init__(self, report_interval_s: float) -> None:
        self._patience_s = PATIENCE_INTERVALS * report_interval_s
        self._open: dict[str, Open] = {}
        self._running_on: dict[str, Open] = {}
        """ended exchanges that still hold their prefill slot"""
        self._ended: dict[str, float] = {}
        self._refused: dict[str, tuple[Refused, float]] = {}
        self.in_flight: Counter[tuple[str, Slot]] = Counter()
        """(role, slot) -> exchanges that hold it now"""
        self.prompt_bytes: Counter[tuple[str, Slot]] = Counter()
        """(role, slot) -> bytes of their request bodies; 0 for those adopted after a restart"""

    def __repr__(self) -> str:
        return (
            f"<Ledger open={len(self._open)} running_on={len(self._running_on)} "
            f"ended={len(self._ended)}>"
        )

    def __len__(self) -> int:
        return len(self._open) + len(self._running_on)

    def __iter__(self) -> Iterator[Open]:
        """All that hold a slot, also those of which only the prefill leg goes on."""
        yield from self._open.values()
        yield from self._running_on.values()

    def find(self, exchange: str) -> Open | None:
        return self._open.get(exchange) or self._running_on.get(exchange)

    def is_told(self, exchange: str) -> bool:
        """Whether its worker has said all it will say: then its end entry may close it."""
        entry = self._open.get(exchange)
        if entry is not None:
            return entry.is_with_log
        return exchange in self._refused or exchange in self._ended

    def busy_addresses(self) -> set[str]:
        """Addresses of the instances that some open exchange still uses."""
        return {slot.address for (_, slot), n in self.in_flight.items() if n > 0}

    # --- what the workers say -----------------------------------------------------------------

    def note(self, record: Record, now: float) -> None:
        """Take one worker record."""
        if isinstance(record, Placed):
            self._placed(record, now)
        elif isinstance(record, Refused):
            if record.exchange not in self._ended:
                self._refused[record.exchange] = (record, now)
        elif isinstance(record, TransferFailed):
            return  # of an exchange that has ended, or will by itself
        elif (entry := self._open.get(record.exchange)) is not None:
            self._progress(entry, record, now)
        elif isinstance(record, PrefillEnded):
            self._ran_on(record.exchange)

    def _ran_on(self, exchange: str) -> None:
        entry = self._running_on.pop(exchange, None)
        if entry is not None:
            self._release(entry)

    def greet(self, hello: Hello, now: float) -> None:
        """A worker's link is new: what it says it holds is all that it holds. What is known may be
        adopted, or given up when the link broke."""
        for placed in hello.open:
            self._placed(placed, now)
        for entry in [e for e in self._running_on.values() if e.placed.worker == hello.worker]:
            self._ran_on(entry.placed.exchange)
        for placed in hello.running_on:
            entry = Open(placed=placed, since=now, named=now, prefill=placed.prefill, decode=None)
            entry.is_with_log = entry.is_prefill_running = True
            self._hold("prefill", entry.prefill, 1, placed.prompt_bytes)
            self._running_on[placed.exchange] = entry

    def _placed(self, record: Placed, now: float) -> None:
        if record.exchange in self._ended:
            return  # its end overtook it
        self._ran_on(record.exchange)
        before = self._open.pop(record.exchange, None)
        if before is not None:
            self._release(before)
        entry = Open(
            placed=record, since=now, named=now, prefill=record.prefill, decode=record.decode
        )
        self._hold("prefill", record.prefill, 1, record.prompt_bytes)
        self._hold("decode", record.decode, 1, record.prompt_bytes)
        self._open[record.exchange] = entry

    def _progress(self, entry: Open, record: PrefillEnded | Moved | Replied, now: float) -> None:
        entry.named = now
        if isinstance(record, PrefillEnded):
            entry.prefill_s, entry.prefill_reason = record.seconds, record.reason
            entry.kv_since = now if record.has_kv else None
            entry.is_prefill_running = False
            self._prefill_over(entry)
        elif isinstance(record, Moved):
            self._move(entry, record.decode)
        else:
            entry.is_with_log = True
            entry.reason, entry.client_phase = record.reason, record.phase
            entry.spare, entry.is_prefill_running = record.spare, record.is_prefill_running
            if not record.is_handed_over:
                self._decode_over(entry)
            if not record.is_prefill_running:
                self._prefill_over(entry, is_whole=not record.is_handed_over)

    def worker_lost(self, worker: int, now: float) -> None:
        """A worker died: Envoy answers what it held, and the access log will tell."""
        for entry in self._open.values():
            if entry.placed.worker == worker and not entry.is_with_log:
                entry.is_with_log, entry.named = True, now
                self._prefill_over(entry)
            elif entry.placed.worker == worker and entry.is_prefill_running:
                entry.is_prefill_running = False
                self._prefill_over(entry)
        for entry in [e for e in self._running_on.values() if e.placed.worker == worker]:
            self._ran_on(entry.placed.exchange)

    def _prefill_over(self, entry: Open, *, is_whole: bool = False) -> None:
        """The prefill leg is over. An aggregated exchange has none: it holds its slot until the
        whole is."""
        if entry.placed.mode is not None or is_whole:
            self._hold("prefill", entry.prefill, -1, entry.placed.prompt_bytes)
            entry.prefill = None

    def _decode_over(self, entry: Open) -> None:
        self._hold("decode", entry.decode, -1, entry.placed.prompt_bytes)
        entry.decode = None

    def _move(self, entry: Open, decode: Slot) -> None:
        """Another decode slot serves it."""
        self._decode_over(entry)
        entry.placed = msgspec.structs.replace(entry.placed, decode=decode)
        entry.decode = decode
        self._hold("decode", entry.decode, 1, entry.placed.prompt_bytes)

    # --- what the access log says ---------------------------------------------------------------

    def report(self, log: Entry, now: float) -> Closed | None:
        """Take one access log entry; returns the exchange if it is over."""
        if log.reply == OWN_REPLY:
            return None
        if not log.exchange:
            # Envoy refused it before the sidecar heard of it: nothing is held, but it is counted.
            return _closed(None, _reason(log), "", log) if log.is_end else None
        if log.is_end:
            return self._end(log, now)
        entry = self._open.get(log.exchange)
        if entry is not None:
            entry.named = now
            self._turned(entry, log)
        elif log.trail is not None and log.exchange not in self._ended:
            self._adopt(log.exchange, log.trail, now)
        return None

    def _turned(self, entry: Open, log: Entry) -> None:
        """Envoy may have turned to the spare host: the log, not the placement, says who serves."""
        if entry.spare is not None and entry.spare.endpoint == log.upstream:
            self._move(entry, entry.spare.slot)
            entry.spare = None

    def _adopt(self, exchange: str, trail: Trail, now: float) -> None:
        """Named but unknown: we were restarted. Prefill is over, or we would have been asked."""
        is_whole = trail.decode is None
        placed = Placed(exchange=exchange, **msgspec.structs.asdict(trail))
        entry = Open(
            placed=placed,
            since=now,
            named=now,
            prefill=trail.prefill if is_whole else None,
            decode=trail.decode,
            is_with_log=True,
            is_adopted=True,
        )
        self._hold("prefill", entry.prefill, 1, entry.placed.prompt_bytes)
        self._hold("decode", entry.decode, 1, entry.placed.prompt_bytes)
        self._open[exchange] = entry

    def _end(self, log: Entry, now: float) -> Closed | None:
        if log.exchange in self._ended:
            return None
        self._ended[log.exchange] = now
        entry = self._open.pop(log.exchange, None)
        refused = self._refused.pop(log.exchange, None)
        if entry is not None:
            self._turned(entry, log)
            self._close_slots(entry)
            # The worker may have died between its answer and the record of it.
            reason = entry.reason or _reason(log)
            ended = _closed(entry.placed, reason, entry.client_phase, log)
            return msgspec.structs.replace(
                ended,
                prefill_s=entry.prefill_s,
                orphaned_since=None if _is_reached(log) else entry.kv_since,
                since=entry.since,
            )
        if refused is not None:
            return _refused(refused[0], log)
        return _closed(None, _reason(log), "", log)

    # --- time -----------------------------------------------------------------------------------

    def sweep(self, now: float) -> list[Closed]:
        """Close what no report has named for too long; forget what ended long ago."""
        lost = [
            key
            for key, entry in self._open.items()
            if entry.is_with_log and now - entry.named > self._patience_s
        ]
        for key in list(_older(self._ended, now)):
            del self._ended[key]
        return [*self._unreported(now), *(self._lose(key, now) for key in lost)]

    def _unreported(self, now: float) -> list[Closed]:
        """Refusals whose end entry never came: how they ended is known all the same."""
        over = list(_older({key: at for key, (_, at) in self._refused.items()}, now))
        self._ended.update((key, now) for key in over)
        return [_refused(self._refused.pop(key)[0], None) for key in over]

    def envoy_gone(self, now: float) -> list[Closed]:
        """Envoy died: all its exchanges (one Envoy for each sidecar) are over."""
        return [self._lose(key, now) for key in list(self._open)]

    def _lose(self, key: str, now: float) -> Closed:
        entry = self._open.pop(key)
        self._close_slots(entry)
        self._ended[key] = now
        placed = entry.placed
        return Closed(
            placed=placed,
            api=placed.api,
            model=placed.model,
            is_streaming=placed.is_streaming,
            outcome=Outcome.LOST,
            reason=entry.reason,
        )

    # --- slots ----------------------------------------------------------------------------------

    def _close_slots(self, entry: Open) -> None:
        """Of an exchange that has ended: all, but a prefill slot whose leg goes on."""
        if not entry.is_prefill_running or entry.prefill is None:
            self._release(entry)
            return
        self._decode_over(entry)
        self._running_on[entry.placed.exchange] = entry

    def _release(self, entry: Open) -> None:
        self._hold("prefill", entry.prefill, -1, entry.placed.prompt_bytes)
        self._hold("decode", entry.decode, -1, entry.placed.prompt_bytes)
        entry.prefill = entry.decode = None

    def _hold(self, role: str, slot: Slot | None, change: int, prompt_bytes: int) -> None:
        if slot is None:
            return
        key = (role, slot)
        self.in_flight[key] += change
        self.prompt_bytes[key] += change * prompt_bytes
        if self.in_flight[key] <= 0:
            del self.in_flight[key], self.prompt_bytes[key]


def _older(times: dict[str, float], now: float) -> Iterator[str]:
    """The keys older than the memory; `times` is in order, so they are at its front."""
    for key, at in times.items():
        if now - at <= MEMORY_S:
            return
        yield key


def _reason(log: Entry) -> Reason | None:
    """The sidecar's own reason first, then Envoy's."""
    is_ours = log.reply in Reason.__members__.values()
    return Reason(log.reply) if is_ours else reason_of(log)


def _is_reached(log: Entry) -> bool:
    return bool(log.upstream) and not log.flags & {"UF", "UH", "UO"}


def _refused(record: Refused, log: Entry | None) -> Closed:
    return Closed(
        placed=None,
        api=record.api,
        model=record.model,
        is_streaming=record.is_streaming,
        outcome=TABLE[record.reason].outcome,
        reason=record.reason,
        entry=log,
    )


def _closed(placed: Placed | None, reason: Reason | None, phase: str, log: Entry) -> Closed:
    known = placed or log.trail
    return Closed(
        placed=placed,
        api=known.api if known else "other",
        model=known.model if known else "",
        is_streaming=known.is_streaming if known else False,
        outcome=outcome_of(reason, log),
        reason=reason,
        client_phase=phase,
        entry=log,
    )
