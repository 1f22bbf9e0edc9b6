"""How much memory this process and its siblings may use, as the kernel says."""

from pathlib import Path

from sidecar.app import control_group


def memory_limit(root: Path = Path("/")) -> int:
    """Bytes: what the machine has, or less where a control group allows less."""
    said = control_group.files_of("memory", "memory.max", "memory.limit_in_bytes", root)
    limits = [_total(root), *map(_number, said)]
    return min(limit for limit in limits if limit)


def _total(root: Path) -> int:
    for line in (root / "proc/meminfo").read_text().splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("every Linux says MemTotal")


def _number(text: str) -> int:
    """0 for `max` and for nothing."""
    return int(text) if text.isdecimal() else 0
