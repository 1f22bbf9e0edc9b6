"""What one request's body takes of its worker's budget, until its exchange ends.

Invariant: `release` gives back all that is taken, and may be called again.
"""

from sidecar.exchange.body_budget import ON_THE_WAY_BYTES, Budget
from sidecar.exchange.intake import declared_bytes
from sidecar.wire.ext_proc import RequestHeaders


class Upload:
    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._taken = 0

    def expect(self, event: RequestHeaders) -> bool:
        """Take what a body on its way counts. False: there is no room for what it declares."""
        declared = declared_bytes(event)
        size = ON_THE_WAY_BYTES if declared is None else declared
        counted = min(size, ON_THE_WAY_BYTES)
        if not self._budget.has_room(size) or not self._budget.take(counted):
            return False
        self._taken = counted
        return True

    def arrived(self, size: int) -> bool:
        """Take what it really has. False: there is no room, and nothing is taken."""
        self.release()
        if not self._budget.take(size):
            return False
        self._taken = size
        return True

    def release(self) -> None:
        self._budget.give_back(self._taken)
        self._taken = 0
