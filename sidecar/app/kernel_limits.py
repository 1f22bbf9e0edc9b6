"""What the kernel allows, against what the configuration asks for."""

import resource
from pathlib import Path

from sidecar.config import Config

BURST = 4096
"""simultaneous requests that the defaults are made for"""
FILES_EACH = 2
"""Envoy holds a client's and an engine's connection for each request"""


def kernel_warnings(config: Config) -> list[str]:
    warnings = []
    files = BURST * FILES_EACH + 1024
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < files:
        warnings.append(
            f"open files are limited to {hard}; a burst of {BURST} needs {files} "
            "(ulimit -Hn, or LimitNOFILE in a unit)"
        )
    somaxconn = int(Path("/proc/sys/net/core/somaxconn").read_text())
    backlog = config.tuning.listener.backlog
    if somaxconn < backlog:
        warnings.append(
            f"net.core.somaxconn is {somaxconn} and caps tuning.listener.backlog ({backlog}): "
            f"sysctl -w net.core.somaxconn={backlog}"
        )
    return warnings
