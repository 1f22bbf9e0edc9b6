"""The part with other numbers of workers than the default: what each costs, and so can carry."""

from tests.bench import whole_part
from tests.bench.fleet import Fleet
from tests.bench.samples import Metric, Samples, Spread, spread_of
from tests.bench.whole_part import Cell
from tests.bench.worker_names import name_of

CELL = Cell(whole_part.SHORT, 256)
"""so many clients that each of four workers has something to do most of the time"""


def run_round(fleet: Fleet, samples: Samples, number: int, seconds: float) -> None:
    whole_part.run_round(fleet, samples, (CELL,), number, seconds)


def share(kind: str) -> Metric:
    """CPU per request of one kind of process."""
    return CELL.metric(whole_part.SHARE_MS.format(kind))


def carried(samples: Samples, workers: int) -> Spread | None:
    """What one of so many workers carries in a second of its time, beside one that is alone. Where
    every worker has a core of its own it is the throughput of each."""
    alone = samples.by_round(name_of(1), share("worker"))
    among = samples.by_round(name_of(workers), share("worker"))
    return spread_of(alone[i] / among[i] for i in alone.keys() & among.keys() if among[i] > 0)
