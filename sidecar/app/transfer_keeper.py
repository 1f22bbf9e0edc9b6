"""Keeps what decode engines wait for in WRITE, and tells them when it will not come.

A decode engine has no time limit for it, and its blocks stay taken when its client leaves (protocol
e). Invariant: what is opened leaves the journal by exactly one of `end` (all is well) and `fail`,
also when this worker dies: the next one finds it.
"""

import asyncio
import logging
from collections.abc import Callable

import msgspec

from sidecar.edge.kv_notifier import KvNotifier
from sidecar.edge.transfer_journal import TransferJournal
from sidecar.exchange.records import Record, TransferFailed
from sidecar.exchange.transfer import Transfer

log = logging.getLogger(__name__)

_decoder = msgspec.msgpack.Decoder(Transfer)


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
        self._tasks: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<TransferKeeper open={len(self._open)} failing={len(self._tasks)}>"

    def recover(self) -> None:
        """Fail what an earlier worker left: its prefill legs were closed when it died."""
        for cell, data in self._journal.leftovers.items():
            try:
                transfer = _decoder.decode(data)
            except msgspec.MsgspecError:
                self._journal.clear(cell)  # of another version
                continue
            self._open[transfer.transfer_id] = (transfer, cell)
            self.fail(transfer.transfer_id, is_certain=False)

    def open(self, transfer: Transfer) -> None:
        cell = self._journal.put(msgspec.msgpack.encode(transfer))
        self._open[transfer.transfer_id] = (transfer, cell)

    def end(self, transfer_id: str) -> None:
        kept = self._open.pop(transfer_id, None)
        if kept is not None:  # else its leg broke before it began
            self._forget(kept[1])

    def fail(self, transfer_id: str, *, is_certain: bool) -> None:
        kept = self._open.pop(transfer_id, None)
        if kept is None:
            return
        transfer, cell = kept
        if self._notifier is None or transfer.notice is None:
            self._forget(cell)
            self._note(TransferFailed(decode=transfer.decode, is_freed=False))
            return
        work = self._tell(self._notifier, transfer, cell, 0.0 if is_certain else self._push_limit_s)
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _tell(
        self, notifier: KvNotifier, transfer: Transfer, cell: int | None, wait_s: float
    ) -> None:
        assert transfer.notice is not None
        # Not before: bytes that are still on their way would land in blocks of someone else.
        await asyncio.sleep(wait_s)
        is_freed = await notifier.send(transfer.notice.addresses, transfer.notice.payload)
        self._forget(cell)
        self._note(TransferFailed(decode=transfer.decode, is_freed=is_freed))

    def _forget(self, cell: int | None) -> None:
        if cell is not None:
            self._journal.clear(cell)

    async def close(self) -> None:
        """What is not told yet stays in the journal."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
