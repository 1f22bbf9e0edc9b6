"""Chaos: everything is killed, stopped and told to fail under load, and nothing hangs or leaks.

`python -m tests.chaos.chaos --seconds 300 --seed 7 --modes READ WRITE`

Exit code 0: every request ended as design §6 allows, and afterwards nothing was held anywhere;
1: what did not is printed, with where its logs are. The seed decides the requests and the order of
the faults; only their timing against each other is the machine's.
"""

import argparse
import random
import signal
import sys

from tests.chaos.plan import DECK
from tests.chaos.run import Run
from tests.chaos.times import times_of


def main() -> int:
    asked = read_arguments()
    # A plain kill must not leave the stack behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    say(f"chaos: seed {asked.seed} (again: make chaos SEED={asked.seed} SECONDS={asked.seconds:g})")
    times = times_of(asked.seconds)
    try:
        failed = [m for m in asked.modes if not Run(m, asked.seed, times, asked.only, say).go()]
    except KeyboardInterrupt:
        say("interrupted; everything is ended")
        return 130
    say(f"FAILED: {', '.join(failed)}" if failed else "passed")
    return 1 if failed else 0


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.chaos.chaos", description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=positive, default=300.0, help="of faults, for each mode")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    modes = ["READ", "WRITE"]
    parser.add_argument("--only", nargs="+", choices=DECK, default=list(DECK), metavar="FAULT")
    parser.add_argument("--modes", nargs="+", choices=modes, default=modes)
    return parser.parse_args()


def positive(text: str) -> float:
    number = float(text)
    if not number > 0:
        raise ValueError(text)
    return number


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
