"""What was measured: one number for each target, metric and round. Pure.

Targets are compared within a round only: what the machine did meanwhile then hit both.
"""

import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, order=True)
class Metric:
    """`cell` is what was done ("600 B, 64 clients"), `quantity` what was read, with its unit."""

    cell: str
    quantity: str


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, least and most of some rounds."""

    median: float
    least: float
    most: float
    rounds: int


@dataclass(slots=True)
class Samples:
    """All numbers of a run, in the order in which metrics came up, and what failed."""

    numbers: dict[Metric, dict[str, dict[int, float]]] = field(default_factory=dict)
    """by metric, target and round"""
    failures: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """by target: one line each"""

    def add(self, round_number: int, target: str, metric: Metric, value: float) -> None:
        self.numbers.setdefault(metric, {}).setdefault(target, {})[round_number] = value

    def fail(self, target: str, line: str) -> None:
        self.failures[target].append(line)

    def as_rows(self) -> list[tuple[str, str, str, int, float]]:
        """Cell, quantity, target, round and number."""
        return [
            (metric.cell, metric.quantity, target, number, value)
            for metric, targets in self.numbers.items()
            for target, rounds in targets.items()
            for number, value in rounds.items()
        ]

    def by_round(self, target: str, metric: Metric) -> dict[int, float]:
        return self.numbers.get(metric, {}).get(target, {})

    def spread(self, target: str, metric: Metric) -> Spread | None:
        return spread_of(self.by_round(target, metric).values())

    def ratio(self, metric: Metric, ours: str, theirs: str) -> Spread | None:
        """Of each round's two numbers; rounds that lack one, or are over nothing, do not count."""
        mine, other = self.by_round(ours, metric), self.by_round(theirs, metric)
        both = mine.keys() & other.keys()
        return spread_of(mine[i] / other[i] for i in both if other[i] > 0)

    def difference(self, metric: Metric, ours: str, theirs: str) -> Spread | None:
        """What `ours` has above `theirs`, of each round."""
        mine, other = self.by_round(ours, metric), self.by_round(theirs, metric)
        return spread_of(mine[i] - other[i] for i in mine.keys() & other.keys())


def spread_of(values: Iterable[float]) -> Spread | None:
    """None without a value."""
    found = list(values)
    if not found:
        return None
    return Spread(statistics.median(found), min(found), max(found), len(found))
