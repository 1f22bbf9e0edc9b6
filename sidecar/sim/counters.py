"""What an engine counted: tests and benches read it at /sim/state."""

from collections import Counter
from typing import Any, Literal

Leg = Literal["prefill", "decode", "plain"]


class Counters:
    """Counts since start or the last reset. Gauges of the present moment live elsewhere."""

    def __init__(self, dp_size: int) -> None:
        self._dp_size = dp_size
        self.reset()

    def reset(self) -> None:
        """Start all counts anew."""
        self.ranks: dict[Leg, list[int]] = {
            "prefill": [0] * self._dp_size,
            "decode": [0] * self._dp_size,
            "plain": [0] * self._dp_size,
        }
        self.errors: Counter[str] = Counter()
        self.released = 0
        self.reaped = 0
        self.reaped_blocks = 0
        self.released_by_notify = 0
        self.failed_by_notify = 0
        self.early_releases = 0
        self.late_releases = 0
        self.renewals = 0
        self.aborted = 0
        self.tokens_sent = 0
        self.local_prefills = 0
        self.holding_most = 0
        self.rejected = 0
        self.requests_received = 0

    def as_dict(self) -> dict[str, Any]:
        """Every count, ready for JSON."""
        return {
            "ranks": self.ranks,
            "errors": dict(self.errors),
            "released": self.released,
            "reaped": self.reaped,
            "reaped_blocks": self.reaped_blocks,
            "released_by_notify": self.released_by_notify,
            "failed_by_notify": self.failed_by_notify,
            "early_releases": self.early_releases,
            "late_releases": self.late_releases,
            "renewals": self.renewals,
            "aborted": self.aborted,
            "tokens_sent": self.tokens_sent,
            "local_prefills": self.local_prefills,
            "holding_most": self.holding_most,
            "rejected": self.rejected,
            "requests_received": self.requests_received,
        }
