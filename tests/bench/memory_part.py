"""The part with memory: of a target that was just started, of idle connections, of open streams.

Of a target's processes; what the kernel keeps for a socket is the same for all and not in it.
"""

from tests.bench.crowd_process import CrowdProcess
from tests.bench.fleet import Fleet, guarded, settle
from tests.bench.memory_account import KIB_PER_MIB, read_memory
from tests.bench.samples import Metric, Samples
from tests.bench.stream_engine_process import StreamEngine
from tests.bench.targets.target import Target

IDLE = "just started"
IDLE_CONNECTIONS = "2000 idle keep-alive connections"
OPEN_STREAMS = "1000 open streams"
PSS_MIB = "PSS, MiB"
RSS_MIB = "RSS, MiB"
KIB_EACH = "PSS of each, KiB"
CONNECTIONS = 2000
STREAMS = 1000
WARM_CLIENTS = 256
AT_ONCE = 16
"""requests without an answer: what is asked for at once must not be taken for what is kept"""
PACE_MS = 1000
CHUNKS = 600


def run_round(fleet: Fleet, samples: Samples, number: int) -> None:
    """`fleet` is a fresh one."""
    engine = fleet.decode
    assert isinstance(engine, StreamEngine)
    engine.set_pace(PACE_MS, CHUNKS)
    for target in fleet.in_turn(number):
        with guarded(samples, target, f"memory, round {number + 1}"):
            measure(samples, target, number)


def measure(samples: Samples, target: Target, number: int) -> None:
    settle(target)
    fresh = read_memory(target.processes())
    for quantity, kib in ((PSS_MIB, fresh.pss_kib), (RSS_MIB, fresh.rss_kib)):
        samples.add(number, target.name, Metric(IDLE, quantity), kib / KIB_PER_MIB)
    # What the first requests make it keep for good is not a connection's.
    grown(samples, target, WARM_CLIENTS, 0, number)
    kept = grown(samples, target, CONNECTIONS, 0, number)
    samples.add(number, target.name, Metric(IDLE_CONNECTIONS, KIB_EACH), kept)
    kept = grown(samples, target, STREAMS, CHUNKS, number)
    samples.add(number, target.name, Metric(OPEN_STREAMS, KIB_EACH), kept)


def grown(samples: Samples, target: Target, clients: int, chunks: int, number: int) -> float:
    """KiB for each of so many clients: with an answer and idle, or with a stream that goes on."""
    settle(target)
    before = read_memory(target.processes()).pss_kib
    with CrowdProcess(target.address, clients, chunks, AT_ONCE) as crowd:
        crowd.go()
        if crowd.connected < clients:
            line = f"memory, round {number + 1}: {crowd.connected} of {clients} connected"
            samples.fail(target.name, line)
        if not chunks and (seen := crowd.finish()).failures:
            samples.fail(target.name, f"memory, round {number + 1}: {seen.faults}")
        settle(target)
        now = read_memory(target.processes()).pss_kib
    return (now - before) / clients
