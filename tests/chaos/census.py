"""What each process of the sidecar holds (files, threads, memory), and its metrics' series."""

import re
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.stack import Stack, http

EVENT_LABELS = ("outcome", "reason", "phase", "type")
"""of closed sets: such a series is born with the first event of its kind, so faults add some"""
EVENT_FAMILIES = (
    "pd_sidecar_orphaned_transfers_total",
    "pd_sidecar_recomputed_requests_total",
    "pd_sidecar_released_transfers_total",
)
"""the same without such a label: at most one series an instance"""


@dataclass(frozen=True, slots=True)
class Process:
    """One process at one moment; its memory is what is resident, in KiB."""

    pid: int
    files: int
    threads: int
    rss_kib: int


def read_process(pid: int) -> Process | None:
    """None: it has gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        files = sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return None
    found = dict(re.findall(r"^(\w+):\s+(\d+)", status, re.M))
    return Process(pid, files, int(found["Threads"]), int(found.get("VmRSS", 0)))


def census(stack: Stack, workers: int) -> dict[str, Process]:
    """Every process of the sidecar by its name; those that are not there are missing."""
    pids: dict[str, list[int]] = {"supervisor": [stack.process.pid if stack.process else 0]}
    pids["control"] = stack.child_pids("control")
    all_workers = set(stack.child_pids("worker"))
    for index in range(workers):
        pids[f"worker {index}"] = sorted(all_workers & set(stack.child_pids(f"--index={index}")))
    try:
        pids["Envoy"] = [stack.envoy_pid()]
    except (OSError, ValueError):
        pids["Envoy"] = []
    found = {name: read_process(one[0]) for name, one in pids.items() if len(one) == 1}
    return {name: process for name, process in found.items() if process is not None}


def series(stack: Stack) -> frozenset[str]:
    """The series of our metrics but those that only an event of their kind makes."""
    _, body = http("GET", f"{stack.observe}/metrics")
    names = (
        line.rpartition(" ")[0] for line in body.decode().splitlines() if not line.startswith("#")
    )
    return frozenset(
        name
        for name in names
        if not name.startswith(EVENT_FAMILIES)
        and not any(f'{label}="' in name for label in EVENT_LABELS)
    )
