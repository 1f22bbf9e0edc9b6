"""The machine and the versions behind a run's numbers; no names, no paths."""

import os
import platform
import re
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from sidecar.app.usable_cores import usable_cores
from sidecar.edge.envoy_process import find_envoy

PACKAGES = ("grpcio", "uvloop", "vllm-router", "quart", "hypercorn", "aiohttp")


def describe_machine() -> str:
    """One line of the machine, one of what ran on it."""
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    machine = f"{usable_cores()} cores of {cpu_model()}, {memory_gib:.0f} GiB"
    kernel = f"Linux {platform.release()}"
    versions = [f"Python {platform.python_version()}", f"Envoy {envoy_version()}"]
    versions += [f"nginx {program_version('nginx', '/usr/sbin/nginx')}"]
    versions += [f"{name} {found}" for name in PACKAGES if (found := package_version(name))]
    return f"Machine: {machine}; {kernel}.\nVersions: {', '.join(versions)}."


def cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Model"):
            return value.strip()
    return platform.machine()


def package_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def envoy_version() -> str:
    return program_version(str(find_envoy(None)), "envoy", "--version")


def program_version(name: str, elsewhere: str, flag: str = "-v") -> str:
    """The first thing like 1.2.3 that it says of itself."""
    command = [shutil.which(name) or elsewhere, flag]
    said = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    found = re.search(r"\d+\.\d+\.\d+", said.stdout + said.stderr)
    return found[0] if found else "unknown"
