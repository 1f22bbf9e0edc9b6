"""How much memory this process and its siblings may use, as the kernel says."""

from pathlib import Path


def memory_limit(root: Path = Path("/")) -> int:
    """Bytes: what the machine has, or less where a control group allows less (versions 1 and 2)."""
    limits = [_total(root), *_group_limits(root)]
    return min(limit for limit in limits if limit)


def _total(root: Path) -> int:
    for line in (root / "proc/meminfo").read_text().splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("every Linux says MemTotal")


def _group_limits(root: Path) -> list[int]:
    """Of the group and of all above it. Within a container its own is the root."""
    limits = []
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, name = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / ("memory" if controllers else "")
        file = "memory.limit_in_bytes" if controllers else "memory.max"
        group = Path(name.lstrip("/"))
        limits += [_number(_read(top / at / file)) for at in [group, *group.parents]]
    return limits


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # not mounted here, or no such controller
        return ""


def _number(text: str) -> int:
    """0 for `max` and for nothing."""
    return int(text) if text.strip().isdecimal() else 0
