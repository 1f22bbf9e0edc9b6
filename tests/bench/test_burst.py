"""`make burst` itself: passes on a small burst, and says what it needs when it cannot run."""

import subprocess
import sys

import pytest

from tests.bench.burst_report import failures, quantiles, table
from tests.bench.burst_round import Round, Times
from tests.bench.kernel_counters import TcpCounters, parse_netstat


def run_burst(*flags: str, hard_limit: int | None = None) -> subprocess.CompletedProcess[str]:
    """The command, with a lower limit of open files if one is given."""
    command = [sys.executable, "-m", "tests.bench.burst", *flags]
    if hard_limit is not None:
        # By a shell: no code of ours may run between fork and exec, as gRPC has threads here.
        command = ["sh", "-c", f'ulimit -n {hard_limit} && exec "$@"', "sh", *command]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.e2e
def test_a_small_burst_passes() -> None:
    """200 clients, one round: all held together, all answered."""
    done = run_burst("--clients=200", "--rounds=1", "--workers=2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed: 200 complete answers" in done.stdout


def test_too_low_a_file_limit_is_named() -> None:
    """Exit code 2, the number and the commands, before anything is started."""
    done = run_burst("--clients=4096", hard_limit=4096)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "ulimit -Hn 8704" in done.stdout


def round_with(**changes: object) -> Round:
    """A round of two clients in which all went well, but for `changes`."""
    facts: dict[str, object] = {
        "number": 1,
        "clients": 2,
        "connected": 2,
        "connect_s": (0.001, 0.002),
        "retransmitted_connects": 0,
        "tcp": TcpCounters(0, 0, 0),
        "held_most": 2,
        "hold_s": 0.5,
        "statuses": {200: 2},
        "faults": {},
        "times": (Times(1.0, 1.5, 0.5), Times(2.0, 2.5, 1.5)),
        "logged": 2,
        "flags": {},
        "ext_proc_errors": {},
        "engine_errors": {},
        "in_flight_after": 0,
        "seconds": 3.0,
    }
    return Round(**{**facts, **changes})


def test_a_good_round_has_no_failures() -> None:
    """And its table names what was seen."""
    one = round_with()
    assert failures(one) == []
    assert "2 x 200" in table([one, one])


@pytest.mark.parametrize(
    "changes",
    [
        {"connected": 1},
        {"held_most": 1},
        {"faults": {"reset": 1}},
        {"statuses": {200: 1, 503: 1}},
        {"flags": {"UO": 1}},
        {"ext_proc_errors": {"ext_proc_error": 1}},
        {"logged": 1},
        {"engine_errors": {"transfer_id_reuse": 1}},
        {"in_flight_after": 1},
    ],
)
def test_each_condition_fails_by_itself(changes: dict[str, object]) -> None:
    """Whatever one of them is, the round has failed."""
    assert failures(round_with(**changes))


def test_quantiles_are_by_nearest_rank() -> None:
    """Of 1 to 100 ms: the 50th and the 99th value."""
    assert quantiles([i / 1000 for i in range(1, 101)], 1000) == "50 / 99"


def test_netstat_is_read_by_names() -> None:
    """The names' line, then the values' line; other groups are left alone."""
    text = "TcpExt: A ListenOverflows\nTcpExt: 3 4\nIpExt: B\nIpExt: 5\n"
    assert parse_netstat(text) == {"A": 3, "ListenOverflows": 4}
