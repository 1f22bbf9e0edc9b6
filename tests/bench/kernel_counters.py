"""The kernel's TCP counters that tell whether a burst of connections was taken without loss.

They count the whole machine (this network namespace), so anything else that runs shows in them.
"""

from dataclasses import dataclass
from pathlib import Path

NETSTAT = Path("/proc/net/netstat")
SOMAXCONN = Path("/proc/sys/net/core/somaxconn")


@dataclass(frozen=True, slots=True)
class TcpCounters:
    """Since boot: connections that found an accept queue full, connections dropped for any reason
    while listening, and SYNs or SYN-ACKs sent again."""

    listen_overflows: int
    listen_drops: int
    syn_retransmits: int

    def __sub__(self, earlier: "TcpCounters") -> "TcpCounters":
        return TcpCounters(
            self.listen_overflows - earlier.listen_overflows,
            self.listen_drops - earlier.listen_drops,
            self.syn_retransmits - earlier.syn_retransmits,
        )


def read_tcp_counters() -> TcpCounters:
    extended = parse_netstat(NETSTAT.read_text())
    return TcpCounters(
        extended["ListenOverflows"], extended["ListenDrops"], extended["TCPSynRetrans"]
    )


def parse_netstat(text: str) -> dict[str, int]:
    """The TcpExt counters of /proc/net/netstat: a line of names, then a line of values."""
    lines = [line.split()[1:] for line in text.splitlines() if line.startswith("TcpExt:")]
    names, values = lines
    return dict(zip(names, map(int, values), strict=True))


def somaxconn() -> int:
    """The longest accept queue that this kernel gives a listener."""
    return int(SOMAXCONN.read_text())
