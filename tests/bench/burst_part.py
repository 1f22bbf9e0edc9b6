"""The part with a burst: thousands connect and ask for a whole answer at the same moment."""

from tests.bench.crowd_process import CrowdProcess
from tests.bench.fleet import Fleet, guarded, settle
from tests.bench.listener_drops import listener_drops
from tests.bench.samples import Metric, Samples
from tests.bench.targets.target import Target

CLIENTS = 4096
CELL = f"burst of {CLIENTS}"
FAILURES = "failures"
OVERFLOWS = "turned away by a full accept queue"
SECONDS = "until done, s"
FIRST_P50_MS = "answer p50, ms"
FIRST_P99_MS = "answer p99, ms"


def run_round(fleet: Fleet, samples: Samples, number: int, limit_s: float) -> None:
    for target in fleet.in_turn(number):
        with guarded(samples, target, f"{CELL}, round {number + 1}"):
            settle(target)
            measure(samples, target, number, limit_s)


def measure(samples: Samples, target: Target, number: int, limit_s: float) -> None:
    port = int(target.address.rpartition(":")[2])
    dropped_before = listener_drops(port)
    with CrowdProcess(target.address, CLIENTS, 0, connects_late=True, limit_s=limit_s) as crowd:
        crowd.go()
        seen = crowd.finish()
    dropped = listener_drops(port) - dropped_before
    if seen.failures:
        where = f"{CELL}, round {number + 1}"
        samples.fail(target.name, f"{where}: {seen.failures} failed: {seen.faults}")
    numbers = {
        FAILURES: float(seen.failures),
        OVERFLOWS: float(dropped),
        SECONDS: seen.seconds,
    }
    if seen.first_s is not None:
        numbers |= {FIRST_P50_MS: seen.first_s[0] * 1e3, FIRST_P99_MS: seen.first_s[1] * 1e3}
    for quantity, value in numbers.items():
        samples.add(number, target.name, Metric(CELL, quantity), value)
