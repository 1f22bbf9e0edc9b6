"""How many requests were compared on each fleet."""

from collections import Counter


class Tally:
    def __init__(self) -> None:
        self._equal: Counter[str] = Counter()

    def __bool__(self) -> bool:
        return bool(self._equal)

    def add(self, fleet: str, requests: int) -> None:
        self._equal[fleet] += requests

    def lines(self) -> list[str]:
        return [f"{fleet}: {requests} equal" for fleet, requests in sorted(self._equal.items())]


TALLY = Tally()
"""of this test process"""
