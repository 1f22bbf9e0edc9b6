"""What a run has seen so far: ends of requests by kind, and every violation with its evidence."""

import time
from collections import Counter
from dataclasses import dataclass

from tests.chaos.question import Question
from tests.chaos.verdict import Heard, Verdict

SHOWN_BYTES = 600


@dataclass(frozen=True, slots=True)
class Violation:
    """Something that must not be. `when` is Unix seconds, as in the logs; `name` finds the request
    in Envoy's access log, empty where none is concerned."""

    when: float
    what: str
    name: str = ""

    def __str__(self) -> str:
        return f"{clock(self.when)} {self.what}"


def clock(when: float) -> str:
    """Local time of day with milliseconds."""
    return time.strftime("%H:%M:%S", time.localtime(when)) + f".{int(when * 1000) % 1000:03d}"


class Tally:
    """Fed by the load's thread and the harness's own; only ever grows."""

    def __init__(self) -> None:
        self.ends: Counter[tuple[str, str]] = Counter()
        """(question's kind, verdict's kind)"""
        self.violations: list[Violation] = []
        self.slowest_s = 0.0

    @property
    def requests(self) -> int:
        return sum(self.ends.values())

    def by_verdict(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for (_, kind), count in list(self.ends.items()):
            found[kind] += count
        return found

    def add(self, question: Question, heard: Heard, verdict: Verdict, took_s: float) -> None:
        self.ends[question.kind, verdict.kind] += 1
        self.slowest_s = max(self.slowest_s, took_s)
        if verdict.violation:
            self.violate(describe(question, heard, verdict, took_s), question.name)

    def violate(self, what: str, name: str = "") -> None:
        self.violations.append(Violation(time.time(), what, name))


def describe(question: Question, heard: Heard, verdict: Verdict, took_s: float) -> str:
    """All that is needed to look into it."""
    lines = [
        f"{verdict.kind}: {verdict.violation}",
        f"  {question.name}, {question.kind}: {question.method} {question.path}, "
        f"{len(question.body)} bytes {question.body[:120]!r}, leave {question.leave}",
        f"  after {took_s:.2f} s: end {heard.end}, status {heard.status}, {heard.fault}",
        f"  headers {dict(heard.headers or {})}",
        f"  {len(heard.body)} bytes, the first {heard.body[:SHOWN_BYTES]!r}",
        f"  the last {heard.body[-SHOWN_BYTES:]!r}",
    ]
    return "\n".join(lines)
