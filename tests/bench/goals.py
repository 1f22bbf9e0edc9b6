"""What must be reached, each with the figure that was measured. Pure."""

import operator
from collections.abc import Callable
from dataclasses import dataclass

from tests.bench import burst_part, memory_part, streams_part, whole_part, workers_part
from tests.bench.samples import Metric, Samples, Spread
from tests.bench.whole_part import Cell


@dataclass(frozen=True, slots=True)
class Goal:
    """One thing to reach. `measured` is None when the run did not measure it."""

    name: str
    measured: Spread | None
    is_at_most: bool
    limit: float
    unit: str

    @property
    def is_reached(self) -> bool:
        """By the median of the rounds; what was not measured is not reached."""
        if self.measured is None:
            return False
        compare: Callable[[float, float], bool] = operator.le if self.is_at_most else operator.ge
        return compare(self.measured.median, self.limit)


def at_most(name: str, measured: Spread | None, limit: float, unit: str) -> Goal:
    return Goal(name, measured, True, limit, unit)


def at_least(name: str, measured: Spread | None, limit: float, unit: str) -> Goal:
    return Goal(name, measured, False, limit, unit)


def judge(samples: Samples) -> list[Goal]:
    """Every goal, those of parts that did not run among them."""
    return [
        *_stream_goals(samples),
        *_request_goals(samples),
        *_body_goals(samples),
        *_burst_goals(samples),
        *_memory_goals(samples),
        at_least(
            "4 workers: what each carries", workers_part.carried(samples, 4), 0.85, "x one alone"
        ),
    ]


def _stream_goals(samples: Samples) -> list[Goal]:
    steady = Metric(streams_part.STEADY.name, streams_part.CPU_US)
    first = Metric(streams_part.TOGETHER.name, streams_part.FIRST_P50_MS)
    gap = Metric(streams_part.TOGETHER.name, streams_part.GAP_P99_MS)
    peer = "vllm-router"
    return [
        at_most("CPU per streamed chunk", samples.ratio(steady, "ours", "envoy"), 1.05, "x Envoy"),
        at_most(
            f"{streams_part.TOGETHER.name}: first chunk p50",
            samples.ratio(first, "ours", peer),
            1.0,
            f"x {peer}",
        ),
        at_most(
            f"{streams_part.TOGETHER.name}: inter-token p99",
            samples.ratio(gap, "ours", peer),
            1.0,
            f"x {peer}",
        ),
    ]


def _request_goals(samples: Samples) -> list[Goal]:
    cpu = Cell(whole_part.SHORT, whole_part.SATURATING).metric(whole_part.CPU_MS)
    rate = whole_part.SATURATED
    return [
        at_most("CPU per short request", samples.spread("ours", cpu), 0.35, "ms"),
        at_most("CPU per short request (stretch)", samples.spread("ours", cpu), 0.2, "ms"),
        at_least("Short requests/s", samples.ratio(rate, "ours", "example"), 5, "x example"),
        at_least(
            "Short requests/s", samples.ratio(rate, "ours", "vllm-router"), 0.5, "x vllm-router"
        ),
    ]


def _body_goals(samples: Samples) -> list[Goal]:
    medium, large = Cell("220 KB", 20), Cell("600 KB", 16)
    p50, cpu = medium.metric(whole_part.P50_MS), large.metric(whole_part.CPU_MS)
    rate = samples.spread("ours", medium.metric(whole_part.RATE))
    ratio = samples.ratio(cpu, "ours", "vllm-router")
    return [
        at_least(f"{medium.name}: requests/s", rate, 1000, "/s"),
        at_most(
            f"{medium.name}: first byte p50, added",
            samples.difference(p50, "ours", "direct"),
            10,
            "ms",
        ),
        at_most(f"{large.name}: CPU per request", ratio, 1.5, "x vllm-router"),
    ]


def _burst_goals(samples: Samples) -> list[Goal]:
    def metric(quantity: str) -> Metric:
        return Metric(burst_part.CELL, quantity)

    failures = samples.spread("ours", metric(burst_part.FAILURES))
    overflows = samples.spread("ours", metric(burst_part.OVERFLOWS))
    ratio = samples.ratio(metric(burst_part.SECONDS), "ours", "envoy")
    return [
        at_most("Burst: failures, worst round", worst(failures), 0, ""),
        at_most("Burst: accept-queue overflows, worst round", worst(overflows), 0, ""),
        at_most("Burst: time until done", ratio, 2, "x Envoy"),
    ]


def worst(spread: Spread | None) -> Spread | None:
    """The highest of the rounds in the place of their median."""
    if spread is None:
        return None
    return Spread(spread.most, spread.least, spread.most, spread.rounds)


def _memory_goals(samples: Samples) -> list[Goal]:
    idle = samples.spread("ours", Metric(memory_part.IDLE_CONNECTIONS, memory_part.KIB_EACH))
    stream = samples.spread("ours", Metric(memory_part.OPEN_STREAMS, memory_part.KIB_EACH))
    return [
        at_most("Memory of an idle keep-alive connection", idle, 20, "KiB"),
        at_most("Memory of an open stream", stream, 60, "KiB"),
    ]
