"""How many requests were compared on each fleet."""

from collections import Counter


class Tally:
    def __init__(self) -> None:
        self._equal: Counter[str] = Counter()
        self.skipped = ""
        """why no real engine was started"""

    def __bool__(self) -> bool:
        return bool(self._equal or self.skipped)

    def add(self, fleet: str, requests: int) -> None:
        self._equal[fleet] += requests

    def lines(self) -> list[str]:
        compared = [
            f"{fleet}: {requests} answers equal the engine's own"
            for fleet, requests in sorted(self._equal.items())
        ]
        return compared + ([f"vllm: SKIPPED, {self.skipped}"] if self.skipped else [])


TALLY = Tally()
"""of this test process"""
