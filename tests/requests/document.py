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

What a client can send, how it is served, and the test (under `tests/`) that proves it. In short:

| requests | are served |
|---|---|
| completions, chats, responses and messages, with all that they may carry | through prefill and \
decode |
| those that one KV transfer cannot carry (several answers or prompts, `echo`, beams, batches), or \
that decode would refuse after prefill was spent | whole by one prefill instance \
(`placement.aggregated_role`: by a decode instance where it does that right) |
| tokens, embeddings, scores and their like | by one instance |
| what an engine refuses | refused in its words |
| what would be kept by one engine (`/v1/responses/{id}`, `store`, `background`) | refused by the \
router |
| what no client should send | refused by the router, and no engine hears of it |

This page is written by `python -m tests.requests.document` from the rows that the tests show.

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
    proof = f"`requests/test_features.py[… {one.test_id}]`"
    other = f"; {one.in_the_other}" if one.in_the_other else ""
    return f"| `{one.path}` | {_cell(one.name)} | {one.served}{status}{other} | {proof} |\n"


def _section(title: str, rows: Iterable[Proof]) -> str:
    lines = "".join(
        f"| {_cell(row.feature)} | {_cell(row.served)} | `{row.test.removeprefix('tests/')}` |\n"
        for row in rows
    )
    return f"\n## {title}\n\n| feature | how it is served | proven by |\n|---|---|---|\n{lines}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PATH.write_text(document())
