"""What a machine or a control group allows is found wherever the kernel says it."""

from pathlib import Path

import pytest

from sidecar.app import settings
from sidecar.app.memory_limit import memory_limit
from sidecar.config import Config, load
from sidecar.edge.run_dir import RunDir

MIB = 1 << 20
V1, V2 = "9:cpu:/x\n4:memory:/a/b\n0::/\n", "0::/a/b\n"


def machine(root: Path, groups: str, **files: str) -> Path:
    """16 GiB, with these files below /sys/fs/cgroup (`__` for a slash)."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text("MemTotal:       16777216 kB\nMemFree: 1 kB\n")
    (root / "proc/self/cgroup").write_text(groups)
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return root


@pytest.mark.parametrize(
    ("groups", "files", "mib"),
    [
        ("", {}, 16384),
        (V2, {"a__b__memory.max": "max", "a__memory.max": "max"}, 16384),
        (V2, {"a__b__memory.max": "1073741824", "a__memory.max": "max"}, 1024),
        (V2, {"a__b__memory.max": "max", "a__memory.max": "536870912"}, 512),
        ("0::/\n", {"memory.max": "1073741824"}, 1024),
        ("0::/../x\n", {"memory.max": "1073741824"}, 1024),
        (V1, {"memory__a__b__memory.limit_in_bytes": "1073741824"}, 1024),
        (V1, {"memory__memory.limit_in_bytes": "9223372036854771712"}, 16384),
        (V2, {"a__b__memory.max": "1099511627776"}, 16384),
    ],
)
def test_the_least_of_all_limits_counts(
    tmp_path: Path, groups: str, files: dict[str, str], mib: int
) -> None:
    """Of the group, of those above it, and of the machine."""
    assert memory_limit(machine(tmp_path, groups, **files)) == mib * MIB


def test_this_machine_has_a_limit() -> None:
    """Whatever it is."""
    assert memory_limit() > 64 * MIB


def test_envoys_heap_is_half_of_it_unless_said() -> None:
    """In steps, so that a few bytes more or less are the same bootstrap."""
    run_dir = RunDir(Path("/r"))
    derived = settings.edge_settings(Config(), run_dir).max_heap_bytes
    assert derived % (64 * MIB) == 0
    assert memory_limit() // 2 - 64 * MIB < derived <= max(memory_limit() // 2, 128 * MIB)
    said = load("envoy: {max_heap_bytes: 123456789}", {}, {})
    assert settings.edge_settings(said, run_dir).max_heap_bytes == 123456789
