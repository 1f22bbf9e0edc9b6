"""KV that prefill handed over and no decode instance was reached to take: released where the
operator allows it, else counted; prefill frees it itself after its `defer_timeout`.

Invariant: no notice goes to an engine that has begun a new life since, or that may have freed the
blocks by itself: what it does not hold it would keep, and try again in every step.
"""

import asyncio
from collections.abc import Callable

from sidecar.edge.kv_notifier import KvNotifier
from sidecar.exchange.ledger import Closed
from sidecar.exchange.reasons import Reason
from sidecar.routing.slots import Slot
from sidecar.routing.view import Member
from sidecar.wire.kv_notice import Notice, release

Find = Callable[[str], Member | None]
"""the member of the pool at an address"""


class Orphans:
    def __init__(
        self,
        freed: Callable[[Slot, bool], None],
        notifier: KvNotifier | None,
        find: Find,
        defer_s: float,
    ) -> None:
        """`freed`: told of each transfer whether its blocks were freed. `notifier`: None where the
        operator did not allow notices. `defer_s`: after which prefill frees them itself."""
        self._freed = freed
        self._notifier = notifier
        self._find = find
        self._latest_s = defer_s / 2
        self._tasks: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<Orphans releasing={len(self._tasks)}>"

    def closed(self, closed: Closed, now: float) -> None:
        """Take an exchange that has ended; `now` is monotonic seconds."""
        placed, since = closed.placed, closed.orphaned_since
        if placed is None or placed.prefill is None or since is None:
            return
        # An engine of another connector has the blocks under another name, and listens elsewhere.
        is_other = closed.reason is Reason.WRONG_CONNECTOR
        is_held = not is_other and now - since < self._latest_s
        notice = (
            self._release(placed.prefill, placed.transfer_id, closed.since) if is_held else None
        )
        if self._notifier is None or notice is None:
            self._freed(placed.prefill, False)
            return
        task = asyncio.create_task(self._tell(self._notifier, placed.prefill, notice))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _release(self, slot: Slot, transfer_id: str, since: float) -> Notice | None:
        member = self._find(slot.address)
        if member is None or not transfer_id or member.alive_since > since:
            return None
        return release(member, slot.dp_rank, transfer_id)

    async def _tell(self, notifier: KvNotifier, slot: Slot, notice: Notice) -> None:
        self._freed(slot, await notifier.send(notice.addresses, notice.payload))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
