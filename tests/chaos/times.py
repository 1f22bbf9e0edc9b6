"""How long each part of a run takes, by the length that was asked for."""

from dataclasses import dataclass

FULL_S = 120.0
"""A run at least so long rests for a minute; a shorter one is for CI."""


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of each part. `settle` is the limit for everything to be at rest again."""

    chaos_s: float
    warm_s: float
    again_s: float
    rest_s: float
    settle_s: float = 30.0


def times_of(seconds: float) -> Times:
    """`seconds` of faults, and what belongs to it."""
    if seconds >= FULL_S:
        return Times(seconds, warm_s=20, again_s=40, rest_s=60)
    return Times(seconds, warm_s=8, again_s=8, rest_s=15)
