"""The benchmark: this project beside its peers, in one run on the same mock engines.

`python -m tests.bench.bench --rounds 5 --seconds 1.5 [--parts requests,burst] [--only ours,envoy]`

Starts every target at once, measures them in turn within each round, and prints ratios, medians and
the list of what must be reached. Exit code 0: it ran; 1: with `--strict`, something was not reached
or failed; 2: something that it needs is missing.
"""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tests.bench import burst_part, memory_part, streams_part, whole_part, workers_part
from tests.bench.bench_document import write_into
from tests.bench.bench_report import describe
from tests.bench.fleet import NAMES, stream_fleet, whole_fleet
from tests.bench.goals import judge
from tests.bench.machine import describe_machine
from tests.bench.needs import missing
from tests.bench.samples import Samples
from tests.bench.targets.target import TargetError
from tests.bench.worker_names import NUMBER_OF

PARTS = ("requests", "bodies", "burst", "workers", "streams", "memory")
MEMORY_ROUNDS = 3
"""at most: each starts everything anew, as memory that was once given does not come back"""
LIMIT_S = 15.0
"""a client has given up by then; a reduced run does not wait so long"""
WINDOW_S = 2.5
DOCUMENT = Path("docs/performance.md")


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run. `seconds` is the time of one load of whole answers."""

    rounds: int
    seconds: float
    parts: Sequence[str]
    names: Sequence[str]

    @property
    def limit_s(self) -> float:
        """For a burst, or streams that start together: what is not served by then has failed. Where
        the accept queue is short, SYNs are sent again after 1, 3, 7, 15 and 31 s."""
        return min(LIMIT_S, 10 * self.seconds)

    @property
    def window_s(self) -> float:
        """Of steady streams."""
        return min(WINDOW_S, 2 * self.seconds)


def main() -> int:
    asked = read_arguments()
    # A plain kill must not leave anything behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    lacks = missing(asked.only, asked.parts)
    for line in lacks:
        say(f"cannot run: {line}")
    if lacks:
        return 2
    plan = Plan(asked.rounds, asked.seconds, asked.parts, asked.only)
    busy = os.getloadavg()[0]
    samples = Samples()
    try:
        run(plan, samples)
    except TargetError as error:
        say(f"FAILED {error}")
        return 1
    goals = judge(samples)
    text = describe(samples, goals, conditions(plan, busy), plan.rounds, plan.names)
    say("\n" + text)
    if asked.json:
        asked.json.write_bytes(msgspec.json.encode(samples.as_rows()))
    if asked.write:
        write_into(DOCUMENT, text)
    is_well = all(goal.is_reached for goal in goals) and not any(samples.failures.values())
    return 1 if asked.strict and not is_well else 0


def conditions(plan: Plan, busy: float) -> str:
    """Under which the numbers came about; `busy` is the load average before the start."""
    loads = f"Loads of {plan.seconds:g} s, bursts of at most {plan.limit_s:g} s"
    return f"{describe_machine()}\n{loads}; load average when it began: {busy:.1f}."


def run(plan: Plan, samples: Samples) -> None:
    """All parts, those that share engines together. Raises TargetError."""
    if {"requests", "bodies", "burst"} & {*plan.parts}:
        with whole_fleet(plan.names) as fleet:
            whole_part.warm_up(fleet)
            for number in range(plan.rounds):
                if "requests" in plan.parts:
                    say(f"round {number + 1}: requests")
                    cells = whole_part.REQUEST_CELLS
                    whole_part.run_round(fleet, samples, cells, number, plan.seconds)
                    whole_part.saturate(samples, plan.names, number)
                if "bodies" in plan.parts:
                    say(f"round {number + 1}: bodies")
                    cells = whole_part.BODY_CELLS
                    whole_part.run_round(fleet, samples, cells, number, plan.seconds)
                if "burst" in plan.parts:
                    say(f"round {number + 1}: burst")
                    burst_part.run_round(fleet, samples, number, plan.limit_s)
    if "workers" in plan.parts:
        with whole_fleet([*NUMBER_OF]) as fleet:
            whole_part.warm_up(fleet)
            for number in range(plan.rounds):
                say(f"round {number + 1}: workers")
                workers_part.run_round(fleet, samples, number, plan.seconds)
    if "streams" in plan.parts:
        with stream_fleet(plan.names) as fleet:
            for number in range(plan.rounds):
                say(f"round {number + 1}: streams")
                streams_part.run_round(fleet, samples, number, plan.window_s, plan.limit_s)
    if "memory" in plan.parts:
        for number in range(min(plan.rounds, MEMORY_ROUNDS)):
            say(f"round {number + 1}: memory")
            with stream_fleet([name for name in plan.names if name != "direct"]) as fleet:
                memory_part.run_round(fleet, samples, number)


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.bench.bench", description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=positive, default=5)
    parser.add_argument("--seconds", type=duration, default=1.5, help="of each wrk load")
    parser.add_argument("--parts", type=Words(PARTS), default=PARTS, help=",".join(PARTS))
    parser.add_argument("--only", type=Words(NAMES), default=NAMES, help=",".join(NAMES))
    parser.add_argument("--strict", action="store_true", help="exit code 1 for what is not reached")
    parser.add_argument("--write", action="store_true", help=f"the tables go into {DOCUMENT}")
    parser.add_argument("--json", type=Path, help="every number of every round goes there")
    return parser.parse_args()


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def duration(text: str) -> float:
    seconds = float(text)
    if not 0.1 <= seconds <= 60:
        raise argparse.ArgumentTypeError(f"{text} is not between 0.1 and 60")
    return seconds


class Words:
    """Reads a list of known words, parted by commas, into their own order."""

    def __init__(self, known: Sequence[str]) -> None:
        self._known = known

    def __call__(self, text: str) -> list[str]:
        words = text.split(",")
        if unknown := [word for word in words if word not in self._known]:
            known = ", ".join(self._known)
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: not one of {known}")
        return [word for word in self._known if word in words]


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
