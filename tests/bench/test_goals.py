"""The list of what must be reached judges by what was measured, and by nothing else."""

import pytest

from tests.bench import burst_part, memory_part, streams_part, workers_part
from tests.bench.goals import judge
from tests.bench.samples import Metric, Samples
from tests.bench.whole_part import CPU_MS, P50_MS, RATE, SATURATED, Cell, saturate

WORKER = workers_part.share("worker")
GOOD: dict[tuple[str, str, str], float] = {
    (streams_part.STEADY.name, streams_part.CPU_US, "ours"): 20.0,
    (streams_part.STEADY.name, streams_part.CPU_US, "envoy"): 20.0,
    (streams_part.TOGETHER.name, streams_part.FIRST_P50_MS, "ours"): 90.0,
    (streams_part.TOGETHER.name, streams_part.FIRST_P50_MS, "vllm-router"): 100.0,
    (streams_part.TOGETHER.name, streams_part.GAP_P99_MS, "ours"): 60.0,
    (streams_part.TOGETHER.name, streams_part.GAP_P99_MS, "vllm-router"): 70.0,
    ("0.6 KB, 64 clients", CPU_MS, "ours"): 0.15,
    (SATURATED.cell, RATE, "ours"): 5000.0,
    (SATURATED.cell, RATE, "example"): 500.0,
    (SATURATED.cell, RATE, "vllm-router"): 6000.0,
    ("220 KB, 20 clients", RATE, "ours"): 1500.0,
    ("220 KB, 20 clients", P50_MS, "ours"): 8.0,
    ("220 KB, 20 clients", P50_MS, "direct"): 1.0,
    ("600 KB, 16 clients", CPU_MS, "ours"): 3.0,
    ("600 KB, 16 clients", CPU_MS, "vllm-router"): 3.0,
    (burst_part.CELL, burst_part.FAILURES, "ours"): 0.0,
    (burst_part.CELL, burst_part.OVERFLOWS, "ours"): 0.0,
    (burst_part.CELL, burst_part.SECONDS, "ours"): 1.5,
    (burst_part.CELL, burst_part.SECONDS, "envoy"): 1.0,
    (memory_part.IDLE_CONNECTIONS, memory_part.KIB_EACH, "ours"): 15.0,
    (memory_part.OPEN_STREAMS, memory_part.KIB_EACH, "ours"): 30.0,
    (WORKER.cell, WORKER.quantity, "workers-1"): 0.20,
    (WORKER.cell, WORKER.quantity, "workers-4"): 0.21,
}
WORSE = [
    (key, value * (0.01 if key[1] == RATE else 100) or 1.0)
    for key, value in GOOD.items()
    if key[2] in ("ours", "workers-4")
]


def samples_of(numbers: dict[tuple[str, str, str], float]) -> Samples:
    samples = Samples()
    for (cell, quantity, target), value in numbers.items():
        samples.add(0, target, Metric(cell, quantity), value)
    return samples


def test_nothing_measured_reaches_nothing() -> None:
    """Every goal is listed, and none of them by chance."""
    goals = judge(Samples())
    assert len(goals) == 16
    assert not any(goal.is_reached or goal.measured for goal in goals)


def test_good_numbers_reach_everything() -> None:
    """So each goal finds its own metric."""
    assert [goal.name for goal in judge(samples_of(GOOD)) if not goal.is_reached] == []


@pytest.mark.parametrize(("key", "value"), WORSE)
def test_each_bad_number_misses_a_goal(key: tuple[str, str, str], value: float) -> None:
    """A rate a hundredth of the good one, or a cost a hundred times as high."""
    assert any(not goal.is_reached for goal in judge(samples_of({**GOOD, key: value})))


def test_one_bad_round_of_a_burst_is_a_failure() -> None:
    """Where the others are judged by their median."""
    samples = samples_of(GOOD)
    for number, failures in enumerate([0.0, 0.0, 0.0, 0.0, 3.0]):
        samples.add(number, "ours", Metric(burst_part.CELL, burst_part.FAILURES), failures)
    missed = [goal.name for goal in judge(samples) if not goal.is_reached]
    assert missed == ["Burst: failures, worst round"]


def test_saturation_is_the_best_of_any_number_of_clients() -> None:
    """Of each target by itself, in each round."""
    samples = samples_of(
        {
            ("0.6 KB, 64 clients", RATE, "ours"): 4000.0,
            ("0.6 KB, 256 clients", RATE, "ours"): 5000.0,
            ("0.6 KB, 16 clients", RATE, "envoy"): 9000.0,
            ("0.6 KB, 256 clients", RATE, "envoy"): 8000.0,
        }
    )
    saturate(samples, ["ours", "envoy", "example"], 0)
    assert samples.numbers[SATURATED] == {"ours": {0: 5000.0}, "envoy": {0: 9000.0}}


def test_a_cell_is_named_for_its_clients() -> None:
    """One client is no plural."""
    assert [Cell("9 KB", n).name for n in (1, 16)] == ["9 KB, 1 client", "9 KB, 16 clients"]
