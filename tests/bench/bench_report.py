"""A run's tables in Markdown: ratios first, what must be reached, then every number. Pure."""

from collections.abc import Sequence

from tests.bench import burst_part, workers_part
from tests.bench.goals import Goal
from tests.bench.samples import Metric, Samples, Spread
from tests.bench.streams_part import (
    FIRST_P50_MS,
    FIRST_P99_MS,
    GAP_P50_MS,
    GAP_P99_MS,
    SHARE_US,
)
from tests.bench.whole_part import P50_MS, P99_MS, RATE, SHARE_MS
from tests.bench.worker_names import NUMBER_OF

PEERS = ("envoy", "vllm-router", "example")
ADDED = (P50_MS, P99_MS, FIRST_P50_MS, FIRST_P99_MS, GAP_P50_MS, GAP_P99_MS)
"""shown as what a target adds to the engines alone"""
TITLES = {"ours": "pd-sidecar", "envoy": "plain Envoy", "direct": "engines alone"}
KINDS = ("Envoy", "worker", "control", "supervisor")
FAILURES_SHOWN = 20
PARTS_OF_CPU = tuple(share.partition("{}")[0] for share in (SHARE_MS, SHARE_US))


def describe(
    samples: Samples, goals: Sequence[Goal], machine: str, rounds: int, names: Sequence[str]
) -> str:
    """Everything, as one Markdown text."""
    parts = [machine, f"{rounds} rounds; median (least to most of the rounds)."]
    if "ours" in names:
        parts += ["### Ratios, pd-sidecar to its peers", ratio_table(samples, names)]
    parts += ["### What must be reached", goal_table(goals)]
    parts += ["### All numbers", number_table(samples, names)]
    parts += ["### Where pd-sidecar's CPU goes", share_table(samples)]
    parts += ["### Workers", worker_table(samples)]
    parts += ["### Failures", failure_list(samples)]
    return "\n\n".join(parts)


def ratio_table(samples: Samples, names: Sequence[str]) -> str:
    peers = [name for name in PEERS if name in names]
    rows = []
    for metric in compared(samples):
        cells = [show(samples.ratio(metric, "ours", peer)) for peer in peers]
        if any(cell != "-" for cell in cells):
            rows.append([metric.cell, metric.quantity, *cells])
    return table(["", "", *(f"to {TITLES.get(peer, peer)}" for peer in peers)], rows)


def compared(samples: Samples) -> list[Metric]:
    """Metrics of which a ratio says something: not the parts of one target's CPU, no counts."""
    counts = (burst_part.FAILURES, burst_part.OVERFLOWS)
    return [one for one in samples.numbers if one.quantity not in counts and not is_share(one)]


def goal_table(goals: Sequence[Goal]) -> str:
    rows = []
    for goal in goals:
        limit = f"{'<=' if goal.is_at_most else '>='} {goal.limit:g} {goal.unit}".strip()
        verdict = "reached" if goal.is_reached else "**not reached**"
        rows.append(
            [goal.name, show(goal.measured), limit, verdict if goal.measured else "not measured"]
        )
    return table(["", "measured", "limit", ""], rows)


def number_table(samples: Samples, names: Sequence[str]) -> str:
    rows = []
    for metric in samples.numbers:
        if is_share(metric) or not any(samples.by_round(name, metric) for name in names):
            continue
        if metric.quantity in ADDED and "direct" in names:
            cells = [show(samples.difference(metric, name, "direct")) for name in names]
            cells[list(names).index("direct")] = show(samples.spread("direct", metric))
            rows.append([metric.cell, f"{metric.quantity}, added", *cells])
        else:
            cells = [show(samples.spread(name, metric)) for name in names]
            rows.append([metric.cell, metric.quantity, *cells])
    return table(["", "", *(TITLES.get(name, name) for name in names)], rows)


def is_share(metric: Metric) -> bool:
    """Whether it is the CPU of one kind of process."""
    return metric.quantity.startswith(PARTS_OF_CPU)


def share_table(samples: Samples) -> str:
    """A row for each cell, a column for each kind of process of ours."""
    shares = {m: samples.spread("ours", m) for m in samples.numbers if is_share(m)}
    cells = list(dict.fromkeys(metric.cell for metric in shares))
    rows = []
    for cell in cells:
        found = {m.quantity: spread for m, spread in shares.items() if m.cell == cell}
        share = next(one for one in (SHARE_MS, SHARE_US) if one.format(KINDS[0]) in found)
        unit = "us a chunk" if share is SHARE_US else "ms a request"
        rows.append([cell, unit, *(show(found.get(share.format(kind))) for kind in KINDS)])
    return table(["", "", *KINDS], rows)


def worker_table(samples: Samples) -> str:
    """A row for each number of workers: CPU of each kind of process in ms a request."""
    rows = []
    for name, workers in NUMBER_OF.items():
        rate = samples.spread(name, workers_part.CELL.metric(RATE))
        shares = [samples.spread(name, workers_part.share(kind)) for kind in KINDS]
        found = (rate, *shares, workers_part.carried(samples, workers))
        rows.append([str(workers), *map(show, found)])
    heads = ("workers", RATE, *(f"{kind}, ms a request" for kind in KINDS), "each, x one alone")
    return table(heads, rows)


def failure_list(samples: Samples) -> str:
    lines = []
    for name, found in samples.failures.items():
        lines += [f"- {TITLES.get(name, name)}: {line}" for line in found[:FAILURES_SHOWN]]
        if len(found) > FAILURES_SHOWN:
            lines.append(f"- {TITLES.get(name, name)}: {len(found) - FAILURES_SHOWN} more")
    return "\n".join(lines) or "None: every answer was decode's own, and both legs were taken."


def show(spread: Spread | None) -> str:
    """`1.02 (0.98 to 1.1)`"""
    if spread is None:
        return "-"
    if spread.rounds == 1:
        return number(spread.median)
    return f"{number(spread.median)} ({number(spread.least)} to {number(spread.most)})"


def number(value: float) -> str:
    """Three digits that count."""
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
