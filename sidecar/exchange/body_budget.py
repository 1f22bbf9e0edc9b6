"""How many bytes of request bodies one worker holds at a time: a number with a limit.

Knows no exchange. Who takes gives back once.
"""

from typing import Protocol

ON_THE_WAY_BYTES = 1 << 12
"""For a body until it is there, at most. Not all that it declares: who declares much and sends
nothing would keep everybody out at no cost. What it makes Envoy hold meanwhile, Envoy bounds."""


class Budget(Protocol):
    def has_room(self, size: int) -> bool: ...

    def take(self, size: int) -> bool:
        """False: there is no room, and nothing was taken."""

    def give_back(self, size: int) -> None: ...


class BodyBudget:
    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.taken = 0

    def __repr__(self) -> str:
        return f"BodyBudget({self.taken} of {self.limit} bytes)"

    def has_room(self, size: int) -> bool:
        # One body alone always has room, whatever its size: that limit is another one.
        return not self.taken or self.taken + size <= self.limit

    def take(self, size: int) -> bool:
        if not self.has_room(size):
            return False
        self.taken += size
        return True

    def give_back(self, size: int) -> None:
        self.taken -= size
        assert self.taken >= 0, "given back more than was taken"
