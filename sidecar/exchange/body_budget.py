"""How many bytes of request bodies one worker holds at a time: a number with a limit.

Knows no exchange. Who takes gives back once; what is taken is an estimate until the body is there.
"""

from typing import Protocol

UNDECLARED_BYTES = 1 << 20
"""for a body whose size nobody said, until it is there"""


class Budget(Protocol):
    def take(self, size: int) -> bool:
        """False: there is no room, and nothing was taken."""

    def give_back(self, size: int) -> None: ...


class BodyBudget:
    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.taken = 0

    def __repr__(self) -> str:
        return f"BodyBudget({self.taken} of {self.limit} bytes)"

    def take(self, size: int) -> bool:
        # One body alone always has room, whatever its size: that limit is another one.
        if self.taken and self.taken + size > self.limit:
            return False
        self.taken += size
        return True

    def give_back(self, size: int) -> None:
        self.taken -= size
        assert self.taken >= 0, "given back more than was taken"
