"""A burst: thousands of clients send at the same moment, and every one gets its whole answer.

`python -m tests.bench.burst --clients 4096 --rounds 3 --workers 2`

Starts the whole thing on this machine (Envoy, the sidecar, two simulated prefill and two decode
engines); a generator in another process opens every connection first and then sends on all. The
prefill engines hold all requests together before they let go. Exit code 0: every round met every
condition; 1: what failed is named, one line each; 2: this machine's file limit is too low.
"""

import argparse
import signal
import sys

from tests.bench.burst_report import failures, table
from tests.bench.burst_round import HOLD_LIMIT_S, GeneratorError, Round, run_round
from tests.bench.file_limit import FileLimit, raise_file_limit
from tests.bench.generator import TOKENS
from tests.bench.kernel_counters import somaxconn
from tests.e2e.stack import Stack

LOG_LINES = 15
"""of the sidecar's own log, shown with a failure"""


def main() -> int:
    asked = read_arguments()
    # A plain kill must not leave the stack behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    limit = FileLimit(asked.clients, raise_file_limit())
    say(f"burst: {asked.clients} clients, {asked.rounds} rounds, {asked.workers} workers")
    say(f"  {TOKENS} tokens an answer, READ; the prefill engines hold up to {HOLD_LIMIT_S:.0f} s")
    for line in limit.describe():
        say(f"  {line}")
    if not limit.is_enough:
        say(f"cannot run: {limit.advise()}")
        return 2
    if somaxconn() < asked.clients:
        say(f"  note: net.core.somaxconn is {somaxconn()}: connections beyond it may have to wait")
    rounds, failed = run(asked.clients, asked.rounds, asked.workers)
    if rounds:
        say("\n" + table(rounds) + "\n")
    for line in failed:
        say(f"FAILED {line}")
    if not failed:
        say(f"passed: {sum(one.complete for one in rounds)} complete answers")
    return 1 if failed else 0


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.bench.burst", description=__doc__.split("\n")[0])
    parser.add_argument("--clients", type=positive, default=4096)
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--workers", type=positive, default=2)
    return parser.parse_args()


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def run(clients: int, rounds: int, workers: int) -> tuple[list[Round], list[str]]:
    """All rounds on one freshly started stack, and what failed in them."""
    done: list[Round] = []
    failed: list[str] = []
    stack = Stack(workers=workers)
    try:
        stack.start()
        prefills, _ = stack.fleet([1, 1], [1, 1])
        for number in range(1, rounds + 1):
            one = run_round(stack, prefills, number, clients)
            done.append(one)
            failed += failures(one)
            say(f"  round {number}: {one.complete} of {clients} in {one.seconds:.1f} s")
    except (AssertionError, GeneratorError) as error:
        failed.append(f"round {len(done) + 1}: {error}")
    finally:
        if failed:
            show_log(stack)
        stack.close()
    return done, failed


def show_log(stack: Stack) -> None:
    loud = (" WARNING ", " ERROR ", " CRITICAL ")
    lines = [line for line in stack.log().splitlines() if any(word in line for word in loud)]
    if lines:
        say("the sidecar's log, its last warnings:")
    for line in lines[-LOG_LINES:]:
        say(f"  {line}")


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
