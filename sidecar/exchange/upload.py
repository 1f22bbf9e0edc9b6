"""What one request's body takes of its worker's budget, until its exchange ends.

Invariant: `release` gives back all that is taken, and may be called again.
"""

from sidecar.exchange.body_budget import Budget
from sidecar.exchange.intake import expected_bytes
from sidecar.wire.ext_proc import RequestHeaders


class Upload:
    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._taken = 0

    def expect(self, event: RequestHeaders) -> bool:
        """Take what the body is declared to have. False: there is no room."""
        size = expected_bytes(event)
        if not self._budget.take(size):
            return False
        self._taken = size
        return True

    def arrived(self, size: int) -> bool:
        """Take what it really has. False: there is no room for the rest."""
        more = size - self._taken
        if more > 0 and not self._budget.take(more):
            return False
        if more < 0:
            self._budget.give_back(-more)
        self._taken = size
        return True

    def release(self) -> None:
        self._budget.give_back(self._taken)
        self._taken = 0
