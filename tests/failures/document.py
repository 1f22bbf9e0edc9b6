"""docs/failures.md, made of the rows that the tests show: `python -m tests.failures.document`."""

from pathlib import Path

from tests.failures.edge_rows import EDGE_ROWS
from tests.failures.elsewhere import ELSEWHERE
from tests.failures.pool import NIXL, READ, WRITE
from tests.failures.row import STREAMED, WHOLE, Expected, Row
from tests.failures.rows import ROWS

PATH = Path(__file__).resolve().parents[2] / "docs" / "failures.md"

HEAD = """# Failures

What a client gets, and what becomes of slots and KV blocks, when something fails. This page is
made of the rows that `tests/failures` shows on a real Envoy, against engines that fail on purpose:
after each of them every slot is free and no engine holds a block. Do not edit it; it is written by
`python -m tests.failures.document`.

Errors have OpenAI's shape, `{"error": {"message", "type", "param", "code"}}`. `code` is also the
header `x-pd-error` and, in `pd_sidecar_refusals_total`, the label `reason`;
[operations.md](operations.md#reading-an-answer) says what each means. An engine's own error passes
byte for byte. A 503 of ours says `retry-after`.

READ and WRITE are the transfer modes of MoRI-IO. NIXL goes as READ does, and was shown in every row
of the first table; where it ends in another way is in [tables of its own](#with-nixl).

*Orphaned* is counted in `pd_sidecar_orphaned_transfers_total`. *A notice* is a message to the
engine's notify port that frees the blocks: it is sent only with `engine.release_kv`, to vLLM 0.33
and later, and counted in `pd_sidecar_released_transfers_total`. Where prefill may still push, it is
sent `engine.transfer_timeout_s` later. Notices and `defer_timeout` are MoRI-IO's alone: what NIXL's
prefill holds is under a lease (30 s, `kv_lease_duration`), which decode renews while it waits.

WRITE stands here for its legs at once (`placement.write_legs: at_once`), and engines that free what
their clients left. In series, the default, a WRITE request fails as one in READ does, but that both
ends are placed anew where decode went while prefill ran ([design.md](design.md)).

## Requests that meet a failure

Streamed and whole, where neither is named; in backquotes `x-pd-error`, and `outcome` of
`pd_sidecar_requests_total`.

| event | READ | WRITE |
|---|---|---|
"""
MIDDLE = """
## Clients that leave, processes that die

| event | READ | WRITE | shown in |
|---|---|---|---|
"""
NIXL_HEAD = """
## With NIXL

As in READ, but for these. Decode tells prefill when its handler ends a leg that has read nothing
yet; of a body that vLLM's request models refuse it tells nobody, and the lease ends.

| event | NIXL |
|---|---|
"""
NIXL_MIDDLE = """
| event | NIXL | shown in |
|---|---|---|
"""
TAIL = """
## What Envoy refuses by itself

| event | status | `x-pd-error` |
|---|---|---|
"""


def document() -> str:
    rows = "".join(_line(row) for row in ROWS)
    more = "".join(
        f"| {e.event} | {e.read} | {e.write} | `{e.test.rpartition('/')[2]}` |\n" for e in ELSEWHERE
    )
    nixl = "".join(
        f"| {_event(row)} | {_cell(row.of(NIXL))} |\n" for row in ROWS if NIXL in row.expected
    )
    nixl += NIXL_MIDDLE + "".join(
        f"| {e.event} | {e.nixl} | `{e.nixl_test.rpartition('/')[2]}` |\n"
        for e in ELSEWHERE
        if e.nixl
    )
    edge = "".join(f"| {row.event} | {row.status} | `{row.reason}` |\n" for row in EDGE_ROWS)
    return HEAD + rows + MIDDLE + more + NIXL_HEAD + nixl + TAIL + edge


def _line(row: Row) -> str:
    read, write = row.expected.get(READ), row.expected.get(WRITE)
    same = read is not None and read == write
    return f"| {_event(row)} | {_cell(read)} | {'same' if same else _cell(write)} |\n"


def _event(row: Row) -> str:
    is_plain = row.body is None and not row.headers and row.answers != (STREAMED, WHOLE)
    is_said = any(word in row.event for word in ("stream", "whole"))
    return f"{row.event} ({row.answers[0]})" if is_plain and not is_said else row.event


def _cell(expected: Expected | None) -> str:
    if expected is None:
        return "not retried: as in the next row"
    parts = [_answer(expected), f"`{expected.outcome}`"]
    parts += [f"{family}" for family in _families(expected)]
    if expected.blocks != "none":
        parts.append(expected.blocks)
    return "; ".join(parts)


def _answer(expected: Expected) -> str:
    if expected.status is None:
        return f"the stream is cut, never ended cleanly, `{expected.reason}`"
    if expected.status == 200:
        return "served"
    whose = "the engine's own " if expected.body is not None else ""
    reason = f" `{expected.reason}`" if expected.reason else ""
    return f"{whose}{expected.status}{reason}"


def _families(expected: Expected) -> list[str]:
    """In words, those that are not about blocks."""
    words = {
        "prefill_retries_total": "after a retry on another slot",
        "recomputed_requests_total": "whole, by that prefill instance",
    }
    return [words[family] for family in expected.counts if family in words]


if __name__ == "__main__":
    PATH.write_text(document())
