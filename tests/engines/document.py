"""The part of docs/engines.md that is made of the tables in `differences`:
`python -m tests.engines.document` writes it between its two marks."""

from collections.abc import Iterable
from pathlib import Path

from tests.engines.broken_legs import BOTH, BROKEN, UNCHANGED, Broken
from tests.engines.differences import OF_A_PAIR, OF_THE_SIMULATOR, OTHER_STATUS
from tests.engines.fleet import Kind

PATH = Path(__file__).resolve().parents[2] / "docs" / "engines.md"
BEGIN = "<!-- made by tests.engines.document: -->"
END = "<!-- end of what tests.engines.document makes -->"

SIMULATOR = """## Where the simulator differs

The rows of [requests.md](requests.md), whole and streamed, and a prefill leg on each API were \
asked of real engines alone. What they answered is kept (`tests/engines/seen.json`): status, \
headers, errors to the letter, keys and types of JSON and events, and how they end. Real engines \
are held to it, and so is the simulator (`--version 0.32.0`). A difference that is not named here \
fails the run, and so does one that is named and not seen. "all": most of the answer.

| request | differs in | because |
|---|---|---|
"""

PAIR = """
### By what a client can tell a pair from one engine

Through the router real engines answer the same rows as one of them alone, refusals too, but for:

| request | wiring | differs in | because |
|---|---|---|---|
"""

OTHER = """
The engines of these tests answer some rows with another status than \
[requests.md](requests.md) says, alone and through the router alike:

| request | status | of | because |
|---|---|---|---|
"""


LEGS = """
### Legs that are wrong in one thing

Sent to the engines without a router, each alike on both (the simulator as 0.32). Rows after which \
an engine is dead, or keeps blocks for good, were seen on vLLM by hand, the others in each run. \
One thing the simulator has not: on vLLM other text also stays in decode's prefix cache.

| wiring | wrong | answer | afterwards |
|---|---|---|---|
"""


def document() -> str:
    """The part, with its marks."""
    parts = [
        SIMULATOR,
        *_table(((one.feature,), (one.at or "all",), (one.why,)) for one in OF_THE_SIMULATOR),
        PAIR,
        *_table(((one.row,), _names(one.kinds), (one.at,), (one.why,)) for one in OF_A_PAIR),
        OTHER,
        *_table(
            ((one.feature,), (str(one.status),), ("vLLM" if one.is_real else "both",), (one.why,))
            for one in OTHER_STATUS
        ),
        LEGS,
        *(_leg(one) for one in BROKEN if one.name != UNCHANGED),
    ]
    return f"{BEGIN}\n{''.join(parts)}{END}\n"


def written(page: str) -> str:
    """The page with the part as it must be. ValueError without the marks."""
    head, rest = page.split(BEGIN)
    _, tail = rest.split(END)
    return head + document().rstrip("\n") + tail


def _leg(one: Broken) -> str:
    wiring = "NIXL" if one.connector == "nixl" else f"MoRI-IO {one.mode}"
    what = one.name if one.of == "decode" else f"at prefill: {one.name}"
    kept = {
        (): "nobody keeps a block",
        ("prefill",): "prefill keeps its blocks until it gives them up",
        BOTH: "prefill keeps its blocks until it gives them up, decode its own for good",
    }[one.keeps]
    after = f"{one.dies}'s engine is dead" if one.dies else kept
    return f"| {wiring} | {what} | {one.answered} | {after} |\n"


def _table(rows: Iterable[tuple[tuple[str, ...], ...]]) -> Iterable[str]:
    """Those that have their last cell in common are one row, each of whose cells has all that
    theirs have."""
    together: dict[str, list[dict[str, None]]] = {}
    for row in rows:
        cells = together.setdefault("".join(row[-1]), [{} for _ in row])
        for cell, said in zip(cells, row, strict=True):
            cell.update(dict.fromkeys(said))
    for cells in together.values():
        yield f"| {' | '.join('; '.join(cell).replace('|', chr(92) + '|') for cell in cells)} |\n"


def _names(kinds: Iterable[Kind]) -> tuple[str, ...]:
    return tuple(kind.name.removeprefix("vllm ") for kind in kinds)


if __name__ == "__main__":
    PATH.write_text(written(PATH.read_text()))
