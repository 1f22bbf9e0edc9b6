"""How much memory processes have: shared pages once (PSS), or once for each of them (RSS)."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

KIB_PER_MIB = 1024


@dataclass(frozen=True, slots=True)
class Memory:
    """Of some processes together, in KiB. `pss` shares a page among those that have it."""

    pss_kib: int
    rss_kib: int

    def __add__(self, other: "Memory") -> "Memory":
        return Memory(self.pss_kib + other.pss_kib, self.rss_kib + other.rss_kib)


def read_memory(pids: Iterable[int]) -> Memory:
    """Raises OSError when one is gone."""
    total = Memory(0, 0)
    for pid in pids:
        total += parse_rollup((Path("/proc") / str(pid) / "smaps_rollup").read_text())
    return total


def parse_rollup(text: str) -> Memory:
    """/proc/PID/smaps_rollup, proc(5)."""
    fields = dict(line.split(":", 1) for line in text.splitlines()[1:])
    return Memory(*(int(fields[name].split()[0]) for name in ("Pss", "Rss")))
