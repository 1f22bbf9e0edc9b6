"""What a person reads: the tables of a run. Pure."""

from collections import Counter
from collections.abc import Sequence

from tests.chaos.aftermath import Row

WIDEST = 160
GOOD = ("right", "refused rightly", "left")


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Columns as wide as they must be, the first one to the left."""
    rows = [list(head), *map(list, lines)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def ends_table(ends: Counter[tuple[str, str]]) -> str:
    """One row a kind of end, one column a kind of request."""
    kinds = sorted({kind for kind, _ in ends})
    verdicts = sorted({verdict for _, verdict in ends}, key=lambda v: (v not in GOOD, v))
    lines = [
        [
            verdict,
            *(str(ends[kind, verdict] or "") for kind in kinds),
            str(sum(ends[kind, verdict] for kind in kinds)),
        ]
        for verdict in verdicts
    ]
    return table(["ends", *kinds, "all"], lines)


def rows_table(title: str, rows: Sequence[Row]) -> str:
    lines = [["" if row.is_met else "FAILED", row.what, row.seen, row.wanted] for row in rows]
    cut = [[cell if len(cell) <= WIDEST else cell[:WIDEST] + "…" for cell in one] for one in lines]
    return table(["", title, "seen", "wanted"], cut)


def words(counts: Counter[str]) -> str:
    """`1180 right, 53 left`, the most frequent first."""
    return ", ".join(f"{n} {kind}" for kind, n in counts.most_common()) or "none"
