"""Ports for the servers that a test starts.

Invariant: no port is handed out twice while the process that asked for it lives, neither to itself
nor to a test process beside it.
"""

import random
import socket

LOW, HIGH = 20000, 32000
"""Below the kernel's range for outgoing connections, so that a load cannot take a port while its
server is away."""

_claims: list[socket.socket] = []
"""One a port. Its name is the kernel's note of who has it, and goes with the process."""


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on and nobody else was promised."""
    for _ in range(1000):
        port = random.randrange(LOW, HIGH)
        if _claim(port):
            return port
    raise RuntimeError("no free port found")


def _claim(port: int) -> bool:
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        claim.bind(f"\0pd-test-port-{port}")  # abstract: no file is left behind
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
    except OSError:
        claim.close()
        return False
    _claims.append(claim)
    return True


def free_ports(count: int) -> int:
    """The first of `count` ports in a row, each as `free_port` gives it."""
    for _ in range(1000):
        first = random.randrange(LOW, HIGH - count)
        if all(_claim(first + i) for i in range(count)):
            return first
    raise RuntimeError(f"no {count} free ports in a row found")
