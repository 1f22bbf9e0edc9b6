"""Keeps what decode engines wait for in WRITE, and tells them when it will not come.

A decode engine has no time limit for it, and its blocks stay taken when its client leaves (protocol
e). While its prefill leg runs a transfer is *open*; when prefill has answered it is *answered*, and
watched for as long as prefill may hold it for a late push: its engine may die before. Invariants:
what is opened leaves the journal by exactly one of these ways, also when this worker dies: the next
one finds it; and whom a notice goes to is looked up when it is sent.
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
from sidecar.routing.view import Member, View
from sidecar.telemetry.repeated import Repeated
from sidecar.wire.kv_notice import write_failed

log = logging.getLogger(__name__)

GRACE_S = 5.0
"""An answered transfer is watched for so much longer than the engines' `defer_timeout`, after which
prefill itself tells decode (from 0.33 on)."""
PATIENCE_S = 60.0
"""An engine that does not take a notice, because it is stopped, is tried for so long."""
RETRY_S = 0.5
SWEEP_S = 1.0


class _Entry(msgspec.Struct, frozen=True, array_like=True):
    """One in the journal."""

    transfer: Transfer
    answered_at: float | None = None


class _Kept(msgspec.Struct, frozen=True):
    transfer: Transfer
    cell: int | None
    """in the journal; None: it had no room"""
    answered_at: float = 0.0


_decoder = msgspec.msgpack.Decoder(_Entry)
Told = Callable[[bool], None]
"""called with whether the engine took the notice, if it has not died with its blocks"""


class TransferKeeper:
    def __init__(
        self,
        journal: TransferJournal,
        notifier: KvNotifier | None,
        note: Callable[[Record], None],
        push_limit_s: float,
        defer_s: float,
    ) -> None:
        """`notifier`: None where the operator did not allow notices; what is lost is then counted.
        `push_limit_s`: how long a prefill engine may go on pushing for a leg that is over.
        `defer_s`: how long it holds blocks for a decode engine that asks late."""
        self._journal = journal
        self._notifier = notifier
        self._note = note
        self._push_limit_s = push_limit_s
        self._watch_s = defer_s + GRACE_S
        self._open: dict[str, _Kept] = {}
        self._answered: OrderedDict[str, _Kept] = OrderedDict()
        """oldest answer first"""
        self._members: dict[str, Member] = {}
        self._has_view = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._unkept = Repeated()

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
            if entry.transfer.since > now:
                self._journal.clear(cell)  # from before the machine was started again
            elif entry.answered_at is None:
                self._fail(_Kept(entry.transfer, cell), is_certain=False)
            else:
                kept = _Kept(entry.transfer, cell, entry.answered_at)
                self._answered[entry.transfer.transfer_id] = kept

    # --- one transfer

    def open(self, transfer: Transfer) -> None:
        data = msgspec.msgpack.encode(_Entry(transfer))
        cell = self._journal.put(data)
        if cell is None and self._answered:
            self._forget(self._answered.popitem(last=False)[1])  # the likeliest to be over
            cell = self._journal.put(data)
        if cell is None and self._unkept.unsaid("journal", transfer.since) is not None:
            log.warning("no room in %r: what waits is not kept if this worker dies", self._journal)
        self._open[transfer.transfer_id] = _Kept(transfer, cell)

    def end(self, transfer_id: str, *, is_answered: bool) -> None:
        kept = self._open.pop(transfer_id, None)
        if kept is None:  # its leg broke before it began
            return
        if not is_answered:
            self._forget(kept)
            return
        now = monotonic()
        if kept.cell is not None:
            self._journal.replace(kept.cell, msgspec.msgpack.encode(_Entry(kept.transfer, now)))
        self._answered[transfer_id] = _Kept(kept.transfer, kept.cell, now)

    def fail(self, transfer_id: str, *, is_certain: bool) -> None:
        kept = self._open.pop(transfer_id, None)
        if kept is not None:
            self._fail(kept, is_certain=is_certain)

    def _fail(self, kept: _Kept, *, is_certain: bool) -> None:
        decode = kept.transfer.decode

        def told(is_told: bool) -> None:
            self._note(TransferFailed(decode=decode, is_freed=is_told))

        self._tell(kept, 0.0 if is_certain else self._push_limit_s, told)

    def _forget(self, kept: _Kept) -> None:
        if kept.cell is not None:
            self._journal.clear(kept.cell)

    # --- telling decode

    def _tell(self, kept: _Kept, wait_s: float, told: Told) -> None:
        if self._notifier is None:
            self._forget(kept)
            told(False)
            return
        task = asyncio.create_task(self._tell_later(self._notifier, kept, wait_s, told))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _tell_later(
        self, notifier: KvNotifier, kept: _Kept, wait_s: float, told: Told
    ) -> None:
        # Not before: bytes that are still on their way would land in blocks of someone else.
        await asyncio.sleep(wait_s)
        await self._has_view.wait()
        is_told = await self._send(notifier, kept.transfer)
        self._forget(kept)
        if is_told is not None:
            told(is_told)

    async def _send(self, notifier: KvNotifier, transfer: Transfer) -> bool | None:
        """Whether decode's engine took it; None: it has died meanwhile, and its blocks with it."""
        deadline = monotonic() + PATIENCE_S
        while monotonic() < deadline:
            member = self._members.get(transfer.decode.address)
            if member is None:
                return False
            if member.alive_since > transfer.since:
                return None
            notice = write_failed(member, transfer.decode.dp_rank, transfer.transfer_id)
            if notice is None:
                return False
            if await notifier.send(notice.addresses, notice.payload):
                return True
            await asyncio.sleep(RETRY_S)
        return False

    # --- what was answered

    def see(self, view: View) -> None:
        """A new view of the pool: has the engine of an answered transfer died since?

        Decode may have got its blocks before; of a transfer that it does not know any more it only
        notes the id (protocol e)."""
        before = {address: member.alive_since for address, member in self._members.items()}
        self._members = {member.instance.address: member for member in view.members}
        self._has_view.set()
        if any(m.alive_since != before.get(address) for address, m in self._members.items()):
            self._review()

    def _review(self) -> None:
        dead: Counter[str] = Counter()
        for transfer_id, kept in list(self._answered.items()):
            prefill = self._members.get(kept.transfer.prefill)
            if prefill is not None and prefill.alive_since > kept.transfer.since:
                del self._answered[transfer_id]
                dead[kept.transfer.prefill] += 1
                # Counted nowhere: most of them had been pushed.
                self._tell(kept, self._push_limit_s, lambda _: None)
        for address, count in dead.items():
            log.info("prefill %s began anew: %d transfers it answered are given up", address, count)

    async def sweep(self) -> None:
        """Forget what prefill has pushed or told decode of itself by now; until cancelled."""
        while True:
            await asyncio.sleep(SWEEP_S)
            self.forget_before(monotonic() - self._watch_s)

    def forget_before(self, answered_at: float) -> None:
        while self._answered:
            transfer_id, kept = next(iter(self._answered.items()))
            if kept.answered_at > answered_at:
                return
            del self._answered[transfer_id]
            self._forget(kept)

    async def close(self) -> None:
        """What is not told yet stays in the journal."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
