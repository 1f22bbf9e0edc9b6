"""What a run needs of this machine, and how to get what is missing."""

import importlib.util
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.bench.burst_part import CLIENTS
from tests.bench.file_limit import FileLimit, raise_file_limit

PROGRAMS = {"nginx": "/usr/sbin/nginx", "wrk": "/usr/bin/wrk"}
"""with where Debian puts them: the PATH of a plain user lacks /usr/sbin"""
MODULES = {"vllm-router": "vllm_router", "example": "quart"}
"""by target"""
CROWDED = {"burst", "streams", "memory"}
"""parts with thousands of connections"""


def missing(names: Sequence[str], parts: Sequence[str]) -> list[str]:
    """One line for each thing that is not there; raises this process's file limit."""
    lines = [*missing_programs(PROGRAMS)]
    lines += missing_modules([MODULES[name] for name in names if name in MODULES])
    limit = FileLimit(CLIENTS, raise_file_limit())
    if CROWDED & {*parts} and not limit.is_enough:
        lines.append(limit.advise())
    return lines


def missing_programs(programs: Mapping[str, str]) -> list[str]:
    absent = [one for one, path in programs.items() if not (shutil.which(one) or is_file(path))]
    return [f"no {' and no '.join(absent)}: apt-get install {' '.join(absent)}"] if absent else []


def missing_modules(modules: Sequence[str]) -> list[str]:
    absent = [one for one in modules if importlib.util.find_spec(one) is None]
    how = "pip install -e '.[dev,bench]', or use `make bench`"
    return [f"no {' and no '.join(absent)}: {how}"] if absent else []


def is_file(path: str) -> bool:
    return Path(path).is_file()
