"""The numbers of instances: unique over both roles, never reused by another address (design §4).

Knows addresses only. Remembers those of instances that are gone, so that one that returns takes its
old place in the walk.
"""

from collections import OrderedDict
from collections.abc import Mapping

MAX_REMEMBERED = 4096
"""ordinals kept of instances that are gone"""


class Ordinals:
    def __init__(self) -> None:
        self.next = 0
        self.gone: OrderedDict[str, int] = OrderedDict()
        """of addresses without a record, oldest first"""

    def of(self, address: str) -> tuple[int, bool]:
        """The ordinal for a new record, and whether the address had it before."""
        remembered = self.gone.pop(address, None)
        if remembered is not None:
            return remembered, True
        self.next += 1
        return self.next - 1, False

    def remember(self, address: str, ordinal: int) -> None:
        """Its record is gone."""
        self.gone[address] = ordinal
        if len(self.gone) > MAX_REMEMBERED:
            self.gone.popitem(last=False)

    def recall(self, saved: Mapping[str, int], next_ordinal: int) -> None:
        """Take up what a file says, but for what contradicts itself: the first of two wins."""
        self.next = max(next_ordinal, max(saved.values(), default=-1) + 1)
        used: set[int] = set()
        for address, ordinal in saved.items():
            if ordinal >= 0 and ordinal not in used:
                used.add(ordinal)
                self.remember(address, ordinal)
