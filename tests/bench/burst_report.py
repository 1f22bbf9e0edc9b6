"""What a person reads after a burst: the table of its rounds, and what failed. Pure."""

import math
from collections.abc import Callable, Sequence

from tests.bench.burst_round import Round

GAP = 3
"""columns between two cells"""


def failures(one: Round) -> list[str]:
    """Every condition that this round did not meet, one line each."""
    n = one.clients
    found = []
    if one.connected != n:
        found.append(f"{one.connected} of {n} connections were opened")
    if one.held_most != n:
        found.append(f"{one.held_most} of {n} requests were held together")
    if one.complete != n:
        found.append(f"{one.complete} of {n} answers are complete: {words(one.faults)}")
    if one.resets:
        found.append(f"{one.resets} connections ended before their answer did")
    refused = {status: k for status, k in one.statuses.items() if status >= 500}
    if refused:
        found.append(f"5xx: {words(refused)}")
    if one.flags.get("UO"):
        found.append(f"{one.flags['UO']} access log entries have the flag UO (circuit breaker)")
    if one.ext_proc_errors:
        found.append(f"ext_proc errors in the access log: {words(one.ext_proc_errors)}")
    if one.logged != n:
        found.append(f"{one.logged} of {n} requests are in the access log")
    if one.engine_errors:
        found.append(f"the engines saw faults: {words(one.engine_errors)}")
    if one.in_flight_after:
        found.append(f"{one.in_flight_after} slots were still held afterwards")
    return [f"round {one.number}: {line}" for line in found]


def table(rounds: Sequence[Round]) -> str:
    """One column a round, the first one cold."""
    heads = [f"round {one.number} {'cold' if i == 0 else 'warm'}" for i, one in enumerate(rounds)]
    lines = [["", *heads]] + [[name, *(read(one) for one in rounds)] for name, read in ROWS]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        f"{first:<{widths[0]}}"
        + "".join(f"{cell:>{w + GAP}}" for cell, w in zip(cells, widths[1:], strict=True))
        for first, *cells in lines
    )


def words(counts: dict[str, int] | dict[int, int]) -> str:
    """`4021 x 200, 75 x 503`"""
    return ", ".join(f"{n} x {key}" for key, n in sorted(counts.items())) or "none"


def quantiles(values: Sequence[float], unit: float = 1.0) -> str:
    """`p50 / p99` by nearest rank; `unit` 1000 gives milliseconds."""
    if not values:
        return "-"
    ordered = sorted(values)
    middle, high = (ordered[math.ceil(len(ordered) * q) - 1] for q in (0.5, 0.99))
    digits = 0 if unit == 1000 else 2
    return f"{middle * unit:.{digits}f} / {high * unit:.{digits}f}"


ROWS: tuple[tuple[str, Callable[[Round], str]], ...] = (
    ("connections", lambda r: str(r.connected)),
    ("connect p50 / p99, ms", lambda r: quantiles(r.connect_s, 1000)),
    ("retransmitted connects", lambda r: str(r.retransmitted_connects)),
    ("ListenOverflows (machine)", lambda r: str(r.tcp.listen_overflows)),
    ("ListenDrops (machine)", lambda r: str(r.tcp.listen_drops)),
    ("TCPSynRetrans (machine)", lambda r: str(r.tcp.syn_retransmits)),
    ("most held at once", lambda r: str(r.held_most)),
    ("from sending to all held, s", lambda r: f"{r.hold_s:.2f}"),
    ("statuses", lambda r: words(r.statuses)),
    ("complete answers", lambda r: str(r.complete)),
    ("resets", lambda r: str(r.resets)),
    ("access log entries", lambda r: str(r.logged)),
    ("response flags", lambda r: words(r.flags)),
    ("ext_proc errors", lambda r: str(sum(r.ext_proc_errors.values()))),
    ("first byte p50 / p99, s", lambda r: quantiles([t.first for t in r.times])),
    ("  of that after the release, s", lambda r: quantiles([t.after_release for t in r.times])),
    ("total p50 / p99, s", lambda r: quantiles([t.total for t in r.times])),
    ("slots held afterwards", lambda r: str(r.in_flight_after)),
    ("round, s", lambda r: f"{r.seconds:.1f}"),
)
