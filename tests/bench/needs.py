"""What a run needs of this machine, and how to get what is missing."""

import importlib.util
import shutil
from collections.abc import Sequence
from pathlib import Path

from tests.bench.burst_part import CLIENTS
from tests.bench.file_limit import FileLimit, raise_file_limit

BY_APT = {"nginx": "/usr/sbin/nginx", "wrk": "/usr/bin/wrk"}
"""with where Debian puts them: its PATH of a plain user lacks /usr/sbin"""
BY_PIP = {"vllm-router": "vllm_router", "example": "quart"}
"""by target: its module"""


def missing(names: Sequence[str], parts: Sequence[str]) -> list[str]:
    """One line for each thing that is not there; raises this process's file limit."""
    lines = []
    programs = [one for one, path in BY_APT.items() if not shutil.which(one) and not is_file(path)]
    if programs:
        lines.append(f"{' and '.join(programs)}: apt-get install {' '.join(programs)}")
    modules = [BY_PIP[name] for name in names if name in BY_PIP]
    absent = [one for one in modules if importlib.util.find_spec(one) is None]
    if absent:
        lines.append(f"{' and '.join(absent)}: pip install -e '.[dev,bench]', or use `make bench`")
    if {"burst", "streams", "memory"} & {*parts}:
        limit = FileLimit(CLIENTS, raise_file_limit())
        if not limit.is_enough:
            lines.append(limit.advise())
    else:
        raise_file_limit()
    return lines


def is_file(path: str) -> bool:
    return Path(path).is_file()
