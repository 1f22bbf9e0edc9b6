"""The parts with whole answers: short requests at several numbers of clients, and larger bodies."""

from collections.abc import Sequence
from dataclasses import dataclass

from tests.bench.cpu_account import read_account, used_since
from tests.bench.fleet import Fleet, guarded, settle
from tests.bench.mock_answers import chat_body
from tests.bench.samples import Metric, Samples
from tests.bench.targets.target import Target
from tests.bench.wrk import Load, Wrk

RATE = "requests/s"
P50_MS = "first byte p50, ms"
P99_MS = "first byte p99, ms"
CPU_MS = "CPU per request, ms"
SHARE_MS = "CPU per request of {}, ms"
WARM_UP_S = 0.3
WARM_UP = ("0.6 KB", "220 KB")

SIZES = {"0.6 KB": 600, "9 KB": 9_000, "72 KB": 72_000, "220 KB": 220_000, "600 KB": 600_000}
SIZES |= {"4 MB": 4_000_000}
SHORT = "0.6 KB"
SATURATING = 64
"""clients at which a short request's CPU is judged"""
SATURATED = Metric(f"{SHORT}, saturated", RATE)


@dataclass(frozen=True, slots=True)
class Cell:
    """A body and a number of clients."""

    size: str
    clients: int

    @property
    def name(self) -> str:
        return f"{self.size}, {self.clients} client{'s' if self.clients > 1 else ''}"

    def metric(self, quantity: str) -> Metric:
        return Metric(self.name, quantity)


REQUEST_CELLS = tuple(Cell(SHORT, clients) for clients in (1, 16, 64, 256))
# Fewer clients for larger bodies: what 256 of them upload at once is the machine's memory bandwidth
# and not a proxy's cost, and at 600 KB a few already keep both cores busy.
BODY_CELLS = (
    *(Cell("9 KB", clients) for clients in (1, 16, 64, 256)),
    *(Cell("72 KB", clients) for clients in (1, 16, 64)),
    *(Cell("220 KB", clients) for clients in (1, 20, 64)),
    *(Cell("600 KB", clients) for clients in (1, 16)),
    *(Cell("4 MB", clients) for clients in (1, 4)),
)


def run_round(
    fleet: Fleet, samples: Samples, cells: Sequence[Cell], number: int, seconds: float
) -> None:
    wrk = Wrk(fleet.folder)
    for cell in cells:
        body = chat_body(SIZES[cell.size])
        for target in fleet.in_turn(number):
            with guarded(samples, target, f"{cell.name}, round {number + 1}"):
                settle(target)
                measure(fleet, samples, target, cell, body, wrk, number, seconds)


def saturate(samples: Samples, names: Sequence[str], number: int) -> None:
    """A target's rate at saturation: its best over the numbers of clients."""
    for name in names:
        rates = [samples.by_round(name, cell.metric(RATE)).get(number) for cell in REQUEST_CELLS]
        if found := [rate for rate in rates if rate is not None]:
            samples.add(number, name, SATURATED, max(found))


def warm_up(fleet: Fleet) -> None:
    """What a target does once only is not measured."""
    wrk = Wrk(fleet.folder)
    for target in fleet.targets:
        for size in WARM_UP:
            wrk.run(target.address, chat_body(SIZES[size]), SATURATING, WARM_UP_S)


def measure(
    fleet: Fleet,
    samples: Samples,
    target: Target,
    cell: Cell,
    body: bytes,
    wrk: Wrk,
    number: int,
    seconds: float,
) -> None:
    """One cell of one target."""
    processes = target.processes()
    legs_before = fleet.prefill.count(), fleet.decode.count()
    cpu_before = read_account(processes)
    load = wrk.run(target.address, body, cell.clients, seconds)
    cpu = used_since(cpu_before, read_account(processes))
    prefilled = fleet.prefill.count() - legs_before[0]
    decoded = fleet.decode.count() - legs_before[1]
    for line in faults(load, prefilled, decoded, target.has_prefill_leg):
        samples.fail(target.name, f"{cell.name}, round {number + 1}: {line}")
    if not load.answers:
        return
    numbers = {RATE: load.per_second, P50_MS: load.p50_s * 1e3, P99_MS: load.p99_s * 1e3}
    if processes:
        numbers[CPU_MS] = sum(cpu.values()) / load.answers * 1e3
    if len(cpu) > 1:
        numbers |= {SHARE_MS.format(kind): s / load.answers * 1e3 for kind, s in cpu.items()}
    for quantity, value in numbers.items():
        samples.add(number, target.name, cell.metric(quantity), value)


def faults(load: Load, prefilled: int, decoded: int, has_prefill_leg: bool) -> list[str]:
    """Why the answers are not all decode's own: none came, some failed, or a leg was left out."""
    found = []
    if not load.answers:
        found.append("no answers")
    if load.failures:
        found.append(f"{load.failures} requests failed, {load.answers} did not")
    if decoded < load.answers:
        found.append(f"{load.answers} answers, but decode was asked {decoded} times")
    if has_prefill_leg and prefilled < load.answers:
        found.append(f"{load.answers} answers, but prefill was asked {prefilled} times")
    return found
