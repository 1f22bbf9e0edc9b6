"""docs/requests.md, made of what the tests show: `python -m tests.requests.document`."""

from collections.abc import Iterable
from pathlib import Path

from tests.clients.rows import PROOFS as CLIENTS
from tests.requests.edge_rows import EDGE
from tests.requests.feature import Feature
from tests.requests.features import FEATURES
from tests.requests.hostile_rows import HOSTILE
from tests.requests.path_rows import PATHS
from tests.requests.proof import Proof
from tests.requests.transport_rows import TRANSPORT

PATH = Path(__file__).resolve().parents[2] / "docs" / "requests.md"

SECTIONS: tuple[tuple[str, Iterable[Proof]], ...] = (
    ("Paths and models", PATHS),
    ("What Envoy answers by itself", EDGE),
    ("Transport", TRANSPORT),
    ("Input that nobody should send", HOSTILE),
    ("Clients", CLIENTS),
)
"""by the tests that are named in each row"""

HEAD = """# Requests

What a client can send, how it is served, and the test that proves it. This page is made of the rows
that the tests show; do not edit it, it is written by `python -m tests.requests.document`.

*Through prefill and decode* is what this router is for. *Whole by one prefill instance* is what
one KV transfer cannot carry: several answers or prompts, or something of the prompt's own pass; and
what decode would refuse after prefill was spent. `placement.aggregated_role` gives it to decode
instances where those do it right. What an engine refuses is refused in its words.

## Features

Each was sent to one engine alone and through the pool, in READ and WRITE, streamed and whole where
both are possible; the answers are equal in all but ids and times, and every slot and block is free
afterwards.

| API | feature | how it is served | proven by |
|---|---|---|---|
"""


def document() -> str:
    features = "".join(_feature(one) for one in FEATURES)
    sections = "".join(_section(title, rows) for title, rows in SECTIONS)
    return HEAD + features + sections


def _feature(one: Feature) -> str:
    status = "" if one.status == 200 else f"; {one.status}"
    proof = f"`test_features.py[… {one.test_id}]`"
    return f"| `{one.path}` | {_cell(one.name)} | {one.served}{status} | {proof} |\n"


def _section(title: str, rows: Iterable[Proof]) -> str:
    lines = "".join(
        f"| {_cell(row.feature)} | {_cell(row.served)} | `{row.test.rpartition('/')[2]}` |\n"
        for row in rows
    )
    return f"\n## {title}\n\n| feature | how it is served | proven by |\n|---|---|---|\n{lines}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PATH.write_text(document())
