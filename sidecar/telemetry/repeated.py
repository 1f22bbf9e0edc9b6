"""A log line that may come thousands of times a second: said once, then summed up.

Knows no log and no clock. Invariant: of one kind at most one line in EVERY_S, and of what was not
said the next line has the count.
"""

from dataclasses import dataclass, field

EVERY_S = 5.0
KEYS_MAX = 1024
"""kinds remembered; then all of them are forgotten, and each is said once more"""


@dataclass
class Repeated:
    """Whether to say a line now; a key is one kind of line. `now` is monotonic seconds."""

    _quiet_until: dict[str, float] = field(default_factory=dict)
    _unsaid: dict[str, int] = field(default_factory=dict)

    def unsaid(self, key: str, now: float) -> int | None:
        """None: keep silent now. Else say it, and how many like it were not said."""
        if now < self._quiet_until.get(key, 0.0):
            self._unsaid[key] = self._unsaid.get(key, 0) + 1
            return None
        if len(self._quiet_until) >= KEYS_MAX:
            self._quiet_until.clear()
            self._unsaid.clear()
        self._quiet_until[key] = now + EVERY_S
        return self._unsaid.pop(key, 0)
