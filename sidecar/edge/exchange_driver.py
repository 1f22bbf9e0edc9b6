"""Drives one `Exchange` from one ext_proc call: performs effects and feeds events, decides nothing.

Callbacks, not a task: between two of them a call costs nothing. Invariant: whatever way a call
ends, the notes that give slots back are written.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from time import monotonic, perf_counter
from typing import Any, Protocol

import msgspec

from sidecar.exchange.effects import (
    ClosePrefill,
    Confirm,
    Effect,
    EndTransfer,
    FailTransfer,
    Note,
    Place,
    Send,
    StartPrefill,
)
from sidecar.exchange.events import Broke, ClientLeft, Event, PrefillAnswered, PrefillFailed
from sidecar.exchange.machine import Exchange
from sidecar.exchange.phase import Phase
from sidecar.exchange.records import Placed, Record, Replied
from sidecar.exchange.transfer import Transfer
from sidecar.routing.slots import Demand, NoPlacement, Placement
from sidecar.wire import ext_proc
from sidecar.wire.calls import Call

log = logging.getLogger(__name__)

PrefillEnd = asyncio.Future[PrefillAnswered | PrefillFailed]

_OVER = (Phase.DONE, Phase.PREFILL_ALONE)
_WAITING = (Phase.PREFILL, Phase.HELD)
"""for prefill alone: what Envoy says meanwhile is heard afterwards, if anyone is left to hear it"""


class Transfers(Protocol):
    """Who keeps what decode engines wait for."""

    def open(self, transfer: Transfer) -> None: ...

    def end(self, transfer_id: str, *, is_answered: bool) -> None: ...

    def fail(self, transfer_id: str, *, is_certain: bool) -> None: ...


class Surroundings(Protocol):
    """What a call needs of its worker."""

    @property
    def transfers(self) -> Transfers: ...

    def new_exchange(self) -> Exchange: ...

    def pick(self, demand: Demand) -> Placement | NoPlacement: ...

    def confirm(self, placement: Placement, demand: Demand) -> Placement | NoPlacement: ...

    def note(self, record: Record) -> None: ...

    def prefill(self, leg: StartPrefill) -> PrefillEnd:
        """The leg under way; cancelled, it is closed."""


class ExchangeDriver:
    """`calls.Handler`. `on_over` is told once the call is over, and once more when a prefill leg
    that outlived it has ended."""

    def __init__(
        self, here: Surroundings, call: Call, on_over: "Callable[[ExchangeDriver], None]"
    ) -> None:
        self._here = here
        self._call = call
        self._on_over = on_over
        self.exchange = here.new_exchange()
        self._is_over = False
        self._kept: deque[bytes] = deque()
        self._prefill: PrefillEnd | None = None
        self._busy_s = 0.0
        self._woke: float | None = None
        """since when it works; None: it waits"""
        self._prefill_over_at: float | None = None

    # --- what happens

    def on_message(self, message: bytes) -> None:
        self._kept.append(message)
        self._hear()

    def on_closed(self) -> None:
        if not self._is_over:
            self._leave()

    def cancel_prefill(self) -> None:
        """Of a leg that has outlived its call: nobody knows then how it ended."""
        if self._prefill is not None:
            self._prefill.cancel()

    def _hear(self) -> None:
        while self._kept and not self._is_over and self.exchange.phase not in _WAITING:
            message = self._kept.popleft()
            self._take(lambda m=message: ext_proc.decode(m))  # type: ignore[misc]

    def _on_prefill_done(self, task: PrefillEnd) -> None:
        if task is not self._prefill:
            return  # closed, or taken with the client's leaving
        self._prefill = None
        self._prefill_over_at = perf_counter()
        if self._is_over:
            try:
                self._settle(self.exchange.handle(self._end_of(task), monotonic()))
            finally:
                self._on_over(self)
            return
        self._take(lambda: self._end_of(task))
        self._hear()

    def _end_of(self, task: PrefillEnd) -> Event:
        if task.cancelled():
            return Broke()
        bug = task.exception()
        if bug is not None:
            log.error("prefill of exchange %s failed", self.exchange.exchange_id, exc_info=bug)
            return Broke()
        return task.result()

    def _take(self, event: Callable[[], Event]) -> None:
        self._woke = perf_counter()
        try:
            self._perform(self.exchange.handle(event(), monotonic()))
        except Exception:  # a bug, whatever it is, is the client's 500 and costs no other call
            log.exception("exchange %s failed", self.exchange.exchange_id)
            self._perform(self.exchange.handle(Broke(), monotonic()))
        self._busy_s += perf_counter() - self._woke
        self._woke = None
        if self.exchange.phase in _OVER and not self._is_over:
            self._call.end()
            self._leave()

    def _leave(self) -> None:
        """The call is over, by whichever end."""
        self._is_over = True
        self._kept.clear()
        left = ClientLeft(prefill=self._late_answer())
        try:
            self._settle(self.exchange.handle(left, monotonic()))
        finally:
            if self.exchange.phase is not Phase.PREFILL_ALONE:
                self._close_prefill()
            # The call knows us: with the circle broken, bodies go now and not with the next garbage
            # collection.
            self._call = _NOBODY
            self._on_over(self)

    def _late_answer(self) -> PrefillAnswered | PrefillFailed | None:
        """What the prefill leg gave, if it has ended and nobody took it."""
        task = self._prefill
        if task is None or not task.done() or task.cancelled() or task.exception() is not None:
            return None
        return task.result()

    # --- what is to be done

    def _perform(self, effects: Iterable[Effect]) -> None:
        """In order; if one fails, what remains is settled all the same."""
        queue = deque(effects)
        try:
            while queue:
                more = self._perform_one(queue.popleft())
                if more:
                    queue.extendleft(reversed(more))
        except Exception:
            self._settle(queue)
            raise

    def _perform_one(self, effect: Effect) -> list[Effect]:
        """Do it; returns the effects of the event that it gave, if it gave one."""
        return _DOING[type(effect)](self, effect)

    def _send(self, effect: Send) -> list[Effect]:
        self._call.send(*ext_proc.encode(effect.reply))
        return _NOTHING

    def _start_prefill(self, effect: StartPrefill) -> list[Effect]:
        if effect.transfer is not None:
            self._here.transfers.open(effect.transfer)
        self._prefill = self._here.prefill(effect)
        self._prefill.add_done_callback(self._on_prefill_done)
        return _NOTHING

    def _place(self, effect: Place) -> list[Effect]:
        started = perf_counter()
        event = self._here.pick(effect.demand)
        seconds = perf_counter() - started
        return [_timed(e, seconds) for e in self.exchange.handle(event, monotonic())]

    def _confirm(self, effect: Confirm) -> list[Effect]:
        confirmed = self._here.confirm(effect.placement, effect.demand)
        return self.exchange.handle(confirmed, monotonic())

    def _settle(self, effects: Iterable[Effect]) -> None:
        """What must happen even when nobody listens any more; one that fails costs no other."""
        for effect in effects:
            try:
                self._settle_one(effect)
            except Exception:
                log.exception("exchange %s: %s", self.exchange.exchange_id, type(effect).__name__)

    def _settle_one(self, effect: Effect) -> list[Effect]:
        if isinstance(effect, Note):
            self._note(effect.record)
        elif isinstance(effect, EndTransfer):
            self._here.transfers.end(effect.transfer_id, is_answered=effect.is_answered)
        elif isinstance(effect, FailTransfer):
            self._here.transfers.fail(effect.transfer_id, is_certain=effect.is_certain)
        elif isinstance(effect, ClosePrefill):
            self._close_prefill()
        return _NOTHING

    def _close_prefill(self) -> None:
        task, self._prefill = self._prefill, None
        if task is not None:
            task.cancel()

    def _note(self, record: Record) -> None:
        if isinstance(record, Replied):
            now = perf_counter()
            over = self._prefill_over_at
            record = msgspec.structs.replace(
                record,
                overhead_s=self._busy_s + (0.0 if self._woke is None else now - self._woke),
                gap_s=now - over if over is not None and record.is_handed_over else None,
            )
        self._here.note(record)


class _Nobody:
    """`calls.Call` of a client that is gone."""

    def send(self, first: bytes, *others: bytes) -> None: ...

    def end(self) -> None: ...


_NOBODY = _Nobody()
_NOTHING: list[Effect] = []
"""never changed"""

_Doing = Callable[[ExchangeDriver, Any], list[Effect]]
"""each takes just the effect of its key"""

_DOING: dict[type, _Doing] = {
    Send: ExchangeDriver._send,
    StartPrefill: ExchangeDriver._start_prefill,
    Place: ExchangeDriver._place,
    Confirm: ExchangeDriver._confirm,
    Note: ExchangeDriver._settle_one,
    EndTransfer: ExchangeDriver._settle_one,
    FailTransfer: ExchangeDriver._settle_one,
    ClosePrefill: ExchangeDriver._settle_one,
}


def _timed(effect: Effect, seconds: float) -> Effect:
    """The note of a placement, with how long the pick took."""
    if isinstance(effect, Note) and isinstance(effect.record, Placed):
        return Note(msgspec.structs.replace(effect.record, placement_s=seconds))
    return effect
