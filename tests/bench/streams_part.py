"""The part with streams: what one chunk costs, and what thousands that start together feel."""

import time
from dataclasses import dataclass

from tests.bench.cpu_account import Seconds, read_account, used_since
from tests.bench.crowd_process import CrowdProcess
from tests.bench.fleet import Fleet, guarded, settle
from tests.bench.samples import Metric, Samples
from tests.bench.stream_engine_process import StreamEngine
from tests.bench.targets.target import Target

CPU_US = "CPU per chunk, us"
SHARE_US = "CPU per chunk of {}, us"
FIRST_P50_MS = "first chunk p50, ms"
FIRST_P99_MS = "first chunk p99, ms"
GAP_P50_MS = "inter-token p50, ms"
GAP_P99_MS = "inter-token p99, ms"
SECONDS = "until all are whole, s"
IDLE = "no requests"
IDLE_MS = "CPU per second, ms"


@dataclass(frozen=True, slots=True)
class Streams:
    """So many at once, `chunks` tokens each, one every `pace_ms`."""

    clients: int
    pace_ms: int
    chunks: int

    @property
    def name(self) -> str:
        return f"{self.clients} streams, a token each {self.pace_ms} ms"

    def metric(self, quantity: str) -> Metric:
        return Metric(self.name, quantity)


STEADY = Streams(400, 50, 1000)
"""As many as leave every target but the stand-in time to spare; never to their end."""
TOGETHER = Streams(1000, 50, 20)
# As many tokens a second as above, 20,000: at 50 ms they were 80,000, more than two cores can carry
# in any way, so that only the queue in front of them would be measured.
MANY = Streams(4000, 200, 10)
AT_ONCE = 32
"""requests without an answer while streams are opened whose opening is not measured"""


def run_round(fleet: Fleet, samples: Samples, number: int, window_s: float, limit_s: float) -> None:
    """`window_s` of steady streams; those that start together have `limit_s` to be whole."""
    engine = fleet.decode
    assert isinstance(engine, StreamEngine)
    idle = idle_rates(fleet, samples, number, window_s)
    engine.set_pace(STEADY.pace_ms, STEADY.chunks)
    for target in fleet.in_turn(number):
        with guarded(samples, target, f"{STEADY.name}, round {number + 1}"):
            settle(target)
            steady(samples, target, idle[target.name], number, window_s)
    for streams in (TOGETHER, MANY):
        engine.set_pace(streams.pace_ms, streams.chunks)
        for target in fleet.in_turn(number):
            with guarded(samples, target, f"{streams.name}, round {number + 1}"):
                settle(target)
                together(fleet, samples, target, streams, number, limit_s)


def idle_rates(fleet: Fleet, samples: Samples, number: int, window_s: float) -> dict[str, Seconds]:
    """CPU seconds a second of each target that has nothing to do, by target and process."""
    for target in fleet.targets:
        settle(target)
    processes = {target.name: target.processes() for target in fleet.targets}
    before = {name: read_account(found) for name, found in processes.items()}
    time.sleep(window_s)
    rates = {}
    for name, found in processes.items():
        used = used_since(before[name], read_account(found))
        rates[name] = {kind: seconds / window_s for kind, seconds in used.items()}
        if found:
            samples.add(number, name, Metric(IDLE, IDLE_MS), sum(rates[name].values()) * 1e3)
    return rates


def steady(samples: Samples, target: Target, idle: Seconds, number: int, window_s: float) -> None:
    """CPU of a chunk: of a window in which all streams are open, so without that of the requests,
    less what the target uses when idle."""
    with CrowdProcess(target.address, STEADY.clients, STEADY.chunks, AT_ONCE) as crowd:
        crowd.go()
        processes = target.processes()
        chunks, cpu_before, began = -crowd.count(), read_account(processes), time.monotonic()
        time.sleep(window_s)
        cpu = used_since(cpu_before, read_account(processes))
        took_s = time.monotonic() - began
        chunks += crowd.count()
    if not chunks:
        samples.fail(target.name, f"{STEADY.name}, round {number + 1}: no chunks")
        return
    each_us = {kind: (s - idle[kind] * took_s) / chunks * 1e6 for kind, s in cpu.items()}
    if each_us:
        samples.add(number, target.name, STEADY.metric(CPU_US), sum(each_us.values()))
    for kind, value in each_us.items() if len(each_us) > 1 else ():
        samples.add(number, target.name, STEADY.metric(SHARE_US.format(kind)), value)


def together(
    fleet: Fleet, samples: Samples, target: Target, streams: Streams, number: int, limit_s: float
) -> None:
    """All connected, then all asked at the same moment."""
    legs_before = fleet.prefill.count(), fleet.decode.count()
    with CrowdProcess(target.address, streams.clients, streams.chunks, limit_s=limit_s) as crowd:
        crowd.go()
        seen = crowd.finish()
    prefilled = fleet.prefill.count() - legs_before[0]
    decoded = fleet.decode.count() - legs_before[1]
    whole = streams.clients - seen.failures
    where = f"{streams.name}, round {number + 1}"
    if seen.failures:
        samples.fail(target.name, f"{where}: {seen.failures} streams failed: {seen.faults}")
    if decoded < whole or (target.has_prefill_leg and prefilled < whole):
        samples.fail(target.name, f"{where}: {whole} streams, legs {prefilled} and {decoded}")
    if seen.first_s is None or seen.gap_s is None:
        return
    numbers = {
        FIRST_P50_MS: seen.first_s[0] * 1e3,
        FIRST_P99_MS: seen.first_s[1] * 1e3,
        GAP_P50_MS: seen.gap_s[0] * 1e3,
        GAP_P99_MS: seen.gap_s[1] * 1e3,
        SECONDS: seen.seconds,
    }
    for quantity, value in numbers.items():
        samples.add(number, target.name, streams.metric(quantity), value)
