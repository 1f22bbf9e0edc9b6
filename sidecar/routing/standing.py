"""How one instance stands with real requests: its failures in a row, and its ejection (design §4).

Knows no other instance: how many may be out at once is `ejection`'s. `now` is monotonic seconds.
"""

from dataclasses import dataclass
from enum import StrEnum
from math import inf

import msgspec


class Failure(StrEnum):
    """How a leg failed by its instance's fault; also the label `reason` of ejections."""

    REFUSED = "refused"
    """no connection: it serves nobody, so it is out at once"""
    RESET = "reset"
    TIMEOUT = "timeout"
    ERROR = "error"
    """it answered 5xx"""


class EjectionRule(msgspec.Struct, frozen=True, kw_only=True):
    """The section `ejection` of the configuration."""

    failures: int = 3
    """in a row; for all but REFUSED"""
    backoff_s: float = 5.0
    """after the first ejection; doubled by each that follows before the instance served again"""
    backoff_max_s: float = 120.0


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """How one leg of a request went at an instance."""

    where: str
    """the instance's address, or the endpoint that Envoy names"""
    failure: Failure | None
    """None: it served"""
    placed_at: float
    """When the request was placed there, or earlier. What was placed before the instance last
    became ready is old news: the requests that hung at a stopped engine all fail when it runs
    again."""


@dataclass(slots=True)
class Standing:
    """Invariant: `failures` is of the time since it last became ready."""

    since: float = inf
    """Evidence of requests placed earlier does not count: when it last became ready, or we last
    stood still; `inf`: neither in this life."""
    failures: int = 0
    """in a row"""
    ejections: int = 0
    """in a row, that is without a request served between them"""
    ejected_for: Failure | None = None
    """None: not ejected"""
    ejected_at: float = 0.0
    until: float = 0.0
    """the end of the back-off"""

    @property
    def is_ejected(self) -> bool:
        return self.ejected_for is not None

    @property
    def is_ejected_on_count(self) -> bool:
        """Ejected, and not because it refused: by the evidence that must not empty a pool."""
        return self.is_ejected and self.ejected_for is not Failure.REFUSED

    def weigh(self, evidence: Evidence, rule: EjectionRule) -> bool:
        """Take the evidence; whether it is cause to eject."""
        if evidence.placed_at < self.since or self.is_ejected:
            return False
        if evidence.failure is None:
            self.failures = self.ejections = 0
            return False
        self.failures += 1
        return evidence.failure is Failure.REFUSED or self.failures >= rule.failures

    def eject(self, failure: Failure, now: float, rule: EjectionRule) -> None:
        self.ejections += 1
        doublings = min(self.ejections - 1, 32)  # more has no meaning and overflows one day
        self.ejected_for, self.ejected_at = failure, now
        self.until = now + min(rule.backoff_max_s, rule.backoff_s * 2**doublings)

    def is_backoff_over(self, now: float) -> bool:
        """Whether it is ejected and a good probe may bring it back."""
        return self.is_ejected and now >= self.until

    def restore(self, now: float) -> None:
        """Back from its ejection."""
        self.ejected_for = None
        self.begin_spell(now)

    def begin_spell(self, now: float) -> None:
        """It became ready: what went before counts no more, but for the length of the back-off."""
        self.since = now
        self.failures = 0

    def remark(self, now: float) -> str:
        """For a log line about something else; empty: nothing to say."""
        return f"; still ejected for {max(0.0, self.until - now):.1f} s" if self.is_ejected else ""
