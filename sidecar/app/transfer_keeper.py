"""Keeps what decode engines wait for in WRITE, and tells them when it will not come.

A decode engine has no time limit for it, and its blocks stay taken when its client leaves (protocol
e). While its prefill leg runs a transfer is *open*; when prefill has answered it is *answered*, and
watched for as long as prefill may hold it for a late push: its engine may die before. Invariant:
what is opened leaves the journal by exactly one of these ways, also when this worker dies: the next
one finds it.
"""

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable
from time import monotonic

import msgspec

from sidecar.edge.kv_notifier import KvNotifier
from sidecar.edge.transfer_journal import TransferJournal
from sidecar.exchange.records import Record, TransferFailed
from sidecar.exchange.transfer import Transfer
from sidecar.routing.view import View
from sidecar.wire.kv_notice import Notice

log = logging.getLogger(__name__)

WATCH_S = 65.0
"""The engines' `defer_timeout` and some: after that prefill itself tells decode (from 0.33 on)."""
SWEEP_S = 1.0


class _Entry(msgspec.Struct, frozen=True):
    """One in the journal."""

    transfer: Transfer
    answered_at: float | None = None


_decoder = msgspec.msgpack.Decoder(_Entry)


class TransferKeeper:
    def __init__(
        self,
        journal: TransferJournal,
        notifier: KvNotifier | None,
        note: Callable[[Record], None],
        push_limit_s: float,
    ) -> None:
        """`notifier`: None where the operator did not allow notices; what is lost is then counted.
        `push_limit_s`: how long a prefill engine may go on pushing for a leg that is over."""
        self._journal = journal
        self._notifier = notifier
        self._note = note
        self._push_limit_s = push_limit_s
        self._open: dict[str, tuple[Transfer, int | None]] = {}
        self._answered: OrderedDict[str, tuple[Transfer, int | None, float]] = OrderedDict()
        """oldest answer first"""
        self._alive_since: dict[str, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return (
            f"<TransferKeeper open={len(self._open)} answered={len(self._answered)} "
            f"failing={len(self._tasks)}>"
        )

    def recover(self, now: float) -> None:
        """Take up what an earlier worker left: its prefill legs were closed when it died."""
        found = []
        for cell, data in self._journal.leftovers.items():
            try:
                found.append((_decoder.decode(data), cell))
            except msgspec.MsgspecError:
                self._journal.clear(cell)  # of another version
        for entry, cell in sorted(found, key=lambda one: one[0].answered_at or 0.0):
            transfer, answered_at = entry.transfer, entry.answered_at
            if transfer.since > now:
                self._journal.clear(cell)  # from before the machine was started again
            elif answered_at is None:
                self._fail(transfer, cell, is_certain=False)
            else:
                self._answered[transfer.transfer_id] = (transfer, cell, answered_at)

    # --- one transfer

    def open(self, transfer: Transfer) -> None:
        cell = self._journal.put(msgspec.msgpack.encode(_Entry(transfer)))
        self._open[transfer.transfer_id] = (transfer, cell)

    def end(self, transfer_id: str, *, is_answered: bool) -> None:
        kept = self._open.pop(transfer_id, None)
        if kept is None:  # its leg broke before it began
            return
        transfer, cell = kept
        if not is_answered:
            self._forget(cell)
            return
        now = monotonic()
        if cell is not None:
            self._journal.replace(cell, msgspec.msgpack.encode(_Entry(transfer, now)))
        self._answered[transfer_id] = (transfer, cell, now)

    def fail(self, transfer_id: str, *, is_certain: bool) -> None:
        kept = self._open.pop(transfer_id, None)
        if kept is not None:
            self._fail(*kept, is_certain=is_certain)

    def _fail(self, transfer: Transfer, cell: int | None, *, is_certain: bool) -> None:
        decode = transfer.decode

        def told(is_told: bool) -> None:
            self._note(TransferFailed(decode=decode, is_freed=is_told))

        self._tell(transfer, cell, 0.0 if is_certain else self._push_limit_s, told)

    def _tell(
        self, transfer: Transfer, cell: int | None, wait_s: float, told: Callable[[bool], None]
    ) -> None:
        notice = transfer.notice
        if self._notifier is None or notice is None:
            self._forget(cell)
            told(False)
            return
        work = self._tell_later(self._notifier, notice, cell, wait_s, told)
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _tell_later(
        self,
        notifier: KvNotifier,
        notice: Notice,
        cell: int | None,
        wait_s: float,
        told: Callable[[bool], None],
    ) -> None:
        # Not before: bytes that are still on their way would land in blocks of someone else.
        await asyncio.sleep(wait_s)
        is_told = await notifier.send(notice.addresses, notice.payload)
        self._forget(cell)
        told(is_told)

    def _forget(self, cell: int | None) -> None:
        if cell is not None:
            self._journal.clear(cell)

    # --- what was answered

    def see(self, view: View) -> None:
        """A new view of the pool: has the engine of an answered transfer died since?

        Decode may have got its blocks before; of a transfer that it does not know any more it only
        notes the id (protocol e)."""
        alive_since = {m.instance.address: m.alive_since for m in view.members}
        if alive_since != self._alive_since:
            self._alive_since = alive_since
            self._review()

    def _review(self) -> None:
        dead: Counter[str] = Counter()
        for transfer_id, (transfer, cell, _) in list(self._answered.items()):
            if self._alive_since.get(transfer.prefill, 0.0) > transfer.since:
                del self._answered[transfer_id]
                dead[transfer.prefill] += 1
                # Counted nowhere: most of them had been pushed.
                self._tell(transfer, cell, self._push_limit_s, lambda _: None)
        for address, count in dead.items():
            log.info("prefill %s died: decode is told of %d transfers it answered", address, count)

    async def sweep(self) -> None:
        """Forget what prefill has pushed or told decode of itself by now; until cancelled."""
        while True:
            await asyncio.sleep(SWEEP_S)
            self.forget_before(monotonic() - WATCH_S)

    def forget_before(self, answered_at: float) -> None:
        while self._answered:
            transfer_id, (_, cell, at) = next(iter(self._answered.items()))
            if at > answered_at:
                return
            del self._answered[transfer_id]
            self._forget(cell)

    async def close(self) -> None:
        """What is not told yet stays in the journal."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
