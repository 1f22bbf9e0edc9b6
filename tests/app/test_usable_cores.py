"""Workers and Envoy threads: one for each core of the machine, or of what a group may use."""

import os
from pathlib import Path

import pytest

from sidecar.app import settings
from sidecar.app.usable_cores import usable_cores
from sidecar.config import WORKERS_MAX, load

V1, V2 = "9:memory:/x\n4:cpu,cpuacct:/a/b\n0::/\n", "0::/a/b\n"


def machine(root: Path, groups: str, files: dict[str, str]) -> Path:
    """With these files below /sys/fs/cgroup."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(groups)
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return root


@pytest.mark.parametrize(
    ("groups", "files", "cores"),
    [
        ("", {}, 6),
        (V2, {"a/b/cpu.max": "max 100000", "a/cpu.max": "max 100000"}, 6),
        (V2, {"a/b/cpu.max": "200000 100000", "a/cpu.max": "max 100000"}, 2),
        (V2, {"a/b/cpu.max": "max 100000", "a/cpu.max": "150000 100000"}, 2),
        (V2, {"a/b/cpu.max": "10000 100000"}, 1),
        (V2, {"a/b/cpu.max": "6400000 100000"}, 6),
        (V2, {"a/b/cpu.max": "100000 0"}, 6),
        (V2, {"a/b/cpu.max": ""}, 6),
        ("0::/\n", {"cpu.max": "300000 100000"}, 3),
        (V1, {"cpu/a/b/cpu.cfs_quota_us": "-1", "cpu/a/b/cpu.cfs_period_us": "100000"}, 6),
        (V1, {"cpu/a/b/cpu.cfs_quota_us": "400000", "cpu/a/b/cpu.cfs_period_us": "100000"}, 4),
        (V1, {"cpu/cpu.cfs_quota_us": "50000"}, 6),
    ],
)
def test_the_least_of_all_limits_counts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    groups: str,
    files: dict[str, str],
    cores: int,
) -> None:
    """Of the group, of those above it, and of the six cores that the scheduler may give."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(6)))
    assert usable_cores(machine(tmp_path, groups, files)) == cores


def test_workers_are_as_many_as_said_or_one_for_each_core() -> None:
    """Up to 8."""
    assert settings.workers_of(load("workers: 3", {}, {})) == 3
    assert settings.workers_of(load("", {}, {})) == min(WORKERS_MAX, usable_cores())
