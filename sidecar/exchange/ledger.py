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

from sidecar.exchange.reasons import OWN_REPLY, TABLE, Outcome, Reason
from sidecar.exchange.records import Moved, Placed, PrefillEnded, Record, Refused, Replied
from sidecar.routing.instance import TransferMode
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
    reason: Reason | None = None
    client_phase: str = ""
    prefill_s: float | None = None
    prefill_reason: Reason | None = None
    """why the last prefill leg failed, if it did"""


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
    orphaned_at: Slot | None = None
    """the prefill slot whose KV decode never fetched, in READ"""


class Ledger:
    """All open exchanges. Each method that ends some returns them as `Closed`, each once."""

    def __init__(self, report_interval_s: float) -> None:
        self._patience_s = PATIENCE_INTERVALS * report_interval_s
        self._open: dict[str, Open] = {}
        self._ended: dict[str, float] = {}
        self._refused: dict[str, tuple[Refused, float]] = {}
        self.in_flight: Counter[tuple[str, Slot]] = Counter()
        """(role, slot) -> exchanges that hold it now"""
        self.prompt_bytes: Counter[tuple[str, Slot]] = Counter()
        """(role, slot) -> bytes of their request bodies; 0 for those adopted after a restart"""

    def __repr__(self) -> str:
        return f"<Ledger open={len(self._open)} ended={len(self._ended)}>"

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Open]:
        return iter(self._open.values())

    def find(self, exchange: str) -> Open | None:
        return self._open.get(exchange)

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
        elif (entry := self._open.get(record.exchange)) is not None:
            self._progress(entry, record, now)

    def _placed(self, record: Placed, now: float) -> None:
        if record.exchange in self._ended:
            return  # its end overtook it
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
            self._prefill_over(entry)
        elif isinstance(record, Moved):
            self._hold("decode", entry.decode, -1, entry.placed.prompt_bytes)
            entry.placed = msgspec.structs.replace(entry.placed, decode=record.decode)
            entry.decode = record.decode
            self._hold("decode", entry.decode, 1, entry.placed.prompt_bytes)
        else:
            entry.is_with_log = True
            entry.reason, entry.client_phase = record.reason, record.phase
            if record.is_handed_over:
                self._prefill_over(entry)
            else:
                self._release(entry)

    def worker_lost(self, worker: int, now: float) -> None:
        """A worker died: Envoy answers what it held, and the access log will tell."""
        for entry in self._open.values():
            if entry.placed.worker == worker and not entry.is_with_log:
                entry.is_with_log, entry.named = True, now
                self._prefill_over(entry)

    def _prefill_over(self, entry: Open) -> None:
        """The prefill leg is over. An aggregated exchange has none: it holds its slot to the
        answer's end."""
        if entry.placed.mode is not None:
            self._hold("prefill", entry.prefill, -1, entry.placed.prompt_bytes)
            entry.prefill = None

    # --- what the access log says ---------------------------------------------------------------

    def report(self, log: Entry, now: float) -> Closed | None:
        """Take one access log entry; returns the exchange if it is over."""
        if log.reply == OWN_REPLY:
            return None
        if not log.exchange:
            # Envoy refused it before the sidecar heard of it: nothing is held, but it is counted.
            return _closed(None, None, "", log) if log.is_end else None
        if log.is_end:
            return self._end(log, now)
        entry = self._open.get(log.exchange)
        if entry is not None:
            entry.named = now
        elif log.trail is not None and log.exchange not in self._ended:
            self._adopt(log.exchange, log.trail, now)
        return None

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
            self._release(entry)
            # The worker may have died between its answer and the record of it.
            reason = entry.reason or _reason(log.reply)
            ended = _closed(entry.placed, reason, entry.client_phase, log)
            return msgspec.structs.replace(
                ended, prefill_s=entry.prefill_s, orphaned_at=_orphaned(entry, log)
            )
        if refused is not None:
            return _refused(refused[0], log)
        return _closed(None, _reason(log.reply), "", log)

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
        self._release(entry)
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


def _reason(reply: str) -> Reason | None:
    return Reason(reply) if reply in Reason.__members__.values() else None


def _orphaned(entry: Open, log: Entry) -> Slot | None:
    """Where KV lies that prefill handed over and that no decode instance was reached to fetch."""
    is_handed_over = entry.prefill_s is not None and entry.prefill_reason is None
    is_reached = log.upstream and not log.flags & {"UF", "UH", "UO"}
    if entry.placed.mode is not TransferMode.READ or not is_handed_over or is_reached:
        return None
    return entry.placed.prefill


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


def outcome_of(reason: Reason | None, log: Entry) -> Outcome:
    """How the client saw it end: the sidecar's own reason first, then Envoy's flags and status."""
    if reason is not None:
        return TABLE[reason].outcome
    if log.flags & {"DC", "DR"} or log.status == 0:
        return Outcome.CANCELLED
    if log.flags & {"SI", "DT"} or ("UT" in log.flags and log.status == 200):
        return Outcome.STALLED
    if not log.exchange and log.status >= 500:
        return Outcome.REFUSED  # by Envoy: no worker answers, or too much is open
    if log.flags & {"UH", "UF", "UC", "UT", "UR", "UO", "URX", "UPE", "LR"} or log.status >= 500:
        return Outcome.DECODE_FAILED
    return Outcome.CLIENT_ERROR if log.status >= 400 else Outcome.OK
