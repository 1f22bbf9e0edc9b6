"""How many cores this process and its siblings may use."""

import os
from math import ceil
from pathlib import Path

from sidecar.app import control_group


def usable_cores(root: Path = Path("/")) -> int:
    """Those that the scheduler may give us, or fewer where a control group has less time for us: a
    pod with a limit of 2 on a machine of 64 cores has 2. At least 1."""
    quotas = control_group.files_of("cpu", "cpu.max", "cpu.cfs_quota_us", root)
    # Version 2 says both in one file.
    periods = control_group.files_of("cpu", "cpu.max", "cpu.cfs_period_us", root)
    limits = [_cores(*pair) for pair in zip(quotas, periods, strict=True)]
    return min([len(os.sched_getaffinity(0)), *(limit for limit in limits if limit)])


def _cores(quota: str, period: str) -> int:
    """Of microseconds in each period; 0 for no limit."""
    words = quota.split()[:1] + period.split()[-1:]
    if len(words) < 2 or not all(word.isdecimal() for word in words) or int(words[1]) == 0:
        return 0
    return ceil(int(words[0]) / int(words[1]))
