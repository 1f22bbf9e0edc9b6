"""What CPU time processes have used, to the nanosecond, with that of their ended threads."""

import time
from collections.abc import Mapping
from pathlib import Path

SCHEDULED = 2
"""CPUCLOCK_SCHED: user and system time as the scheduler counts it"""

Seconds = dict[str, float]
"""CPU seconds by the name of a process; several may share one"""


def cpu_seconds(pid: int) -> float:
    """Of one process since it began. Raises OSError when it is gone.

    The kernel's CPU clock of a process (clock_getcpuclockid(3)): ~pid in the upper bits.
    """
    return time.clock_gettime_ns((~pid << 3) | SCHEDULED) / 1e9


def read_account(processes: Mapping[int, str]) -> Seconds:
    """Of all of them, by name. Raises OSError when one is gone: its time would be missing."""
    total: Seconds = {}
    for pid, name in processes.items():
        total[name] = total.get(name, 0.0) + cpu_seconds(pid)
    return total


def used_since(before: Seconds, now: Seconds) -> Seconds:
    return {name: seconds - before.get(name, 0.0) for name, seconds in now.items()}


def descendants(root: int) -> list[int]:
    """The process itself and all that came from it and live."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            stat = (entry / "stat").read_text()
        except OSError:
            continue  # it has just ended
        state, parent = stat.rpartition(")")[2].split()[:2]
        if state not in "ZX":
            children.setdefault(int(parent), []).append(int(entry.name))
    found = [root]
    for pid in found:
        found.extend(children.get(pid, ()))
    return found


def command_of(pid: int) -> list[str]:
    """Its arguments, the program first; empty when it is gone."""
    try:
        return (Path("/proc") / str(pid) / "cmdline").read_bytes().decode().split("\0")[:-1]
    except OSError:
        return []
