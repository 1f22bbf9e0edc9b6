"""KV blocks that an exchange left behind: freed where the operator allows it, else counted.

Two kinds. *Orphaned*: prefill handed KV over and no decode instance was reached to take it; prefill
frees it itself after its `defer_timeout`. *Waiting*: in WRITE, decode was reached and prefill
answered, then prefill's engine died before it pushed; nobody frees that. Invariant: no notice goes
to an engine that has begun a new life since, for it never had the transfer.
"""

import asyncio
import logging
from collections.abc import Callable

import msgspec

from sidecar.edge.kv_notifier import KvNotifier
from sidecar.exchange.ledger import Closed
from sidecar.exchange.records import Placed
from sidecar.routing.slots import Slot
from sidecar.routing.view import Member
from sidecar.wire.kv_notice import Notice, release, write_failed

log = logging.getLogger(__name__)

DEFER_S = 60.0
"""The engines' `defer_timeout`: until then prefill holds what nobody fetched, and pushes to a
decode engine that asks late."""
MEMORY_S = 2 * DEFER_S

Find = Callable[[str], Member | None]
"""the member of the pool at an address"""
AliveSince = Callable[[str], float | None]
"""since when (monotonic seconds) its engine is known not to have died; None: it is gone"""


class _Waiting(msgspec.Struct, frozen=True):
    placed: Placed
    since: float
    until: float


class Orphans:
    def __init__(
        self,
        freed: Callable[[Slot, bool], None],
        notifier: KvNotifier | None,
        find: Find,
        alive_since: AliveSince,
        push_limit_s: float,
    ) -> None:
        """`freed`: told of each transfer whether its blocks were freed. `notifier`: None where the
        operator did not allow notices. `push_limit_s`: how long bytes of a dead engine may still
        be on their way."""
        self._freed = freed
        self._notifier = notifier
        self._find = find
        self._alive_since = alive_since
        self._push_limit_s = push_limit_s
        self._waiting: dict[str, _Waiting] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<Orphans waiting={len(self._waiting)} freeing={len(self._tasks)}>"

    def closed(self, closed: Closed, now: float) -> None:
        """Take an exchange that has ended."""
        placed = closed.placed
        if placed is None:
            return
        if closed.is_orphaned and placed.prefill is not None:
            self._free(placed.prefill, self._release(placed, placed.prefill, closed.since), 0.0)
        elif closed.may_be_waiting:
            self._waiting[placed.exchange] = _Waiting(placed, closed.since, now + MEMORY_S)

    def sweep(self, now: float) -> None:
        """To be called a few times a second: has the prefill engine of one that waits died?"""
        for exchange, waiting in list(self._waiting.items()):
            placed = waiting.placed
            assert placed.prefill is not None
            assert placed.decode is not None
            if self._is_same_life(placed.prefill, waiting.since):
                if now > waiting.until:  # it has pushed, or told decode that it will not
                    del self._waiting[exchange]
                continue
            del self._waiting[exchange]
            if self._is_same_life(placed.decode, waiting.since):
                notice = self._write_failed(placed, placed.decode)
                self._free(placed.decode, notice, self._push_limit_s)

    def _is_same_life(self, slot: Slot, since: float) -> bool:
        alive_since = self._alive_since(slot.address)
        return alive_since is not None and alive_since <= since

    def _release(self, placed: Placed, slot: Slot, since: float) -> Notice | None:
        member = self._find(slot.address)
        if member is None or not placed.transfer_id or not self._is_same_life(slot, since):
            return None
        return release(member, slot.dp_rank, placed.transfer_id)

    def _write_failed(self, placed: Placed, slot: Slot) -> Notice | None:
        member = self._find(slot.address)
        if member is None or not placed.transfer_id:
            return None
        return write_failed(member, slot.dp_rank, placed.transfer_id)

    def _free(self, slot: Slot, notice: Notice | None, wait_s: float) -> None:
        if self._notifier is None or notice is None:
            self._freed(slot, False)
            return
        task = asyncio.create_task(self._tell(self._notifier, slot, notice, wait_s))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _tell(self, notifier: KvNotifier, slot: Slot, notice: Notice, wait_s: float) -> None:
        await asyncio.sleep(wait_s)
        is_freed = await notifier.send(notice.addresses, notice.payload)
        self._freed(slot, is_freed)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
