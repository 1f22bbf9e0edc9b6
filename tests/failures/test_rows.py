"""Every row of the failure table, on a real Envoy: what the client gets, what is counted, and that
nothing is held afterwards."""

import json
from collections.abc import Callable, Iterator
from time import monotonic

import pytest

from sidecar.sim.model import expected_text
from tests.e2e.stack import until
from tests.failures.asking import Client, Ended
from tests.failures.pool import NIXL, READ, SETTLE_S, SLACK_S, WRITE, Pool
from tests.failures.row import STREAMED, Expected, Row
from tests.failures.rows import ROWS

pytestmark = pytest.mark.e2e

EARLIER_S = 0.5
"""prefill may have failed so long before its client hears of it"""
PROMPT, TOKENS = "Nothing hangs, nothing leaks", 6
RECOMPUTED = "recomputed_requests_total"
SHARED = [row for row in ROWS if not row.has_own_pool]
OWN = [row for row in ROWS if row.has_own_pool]


def cases(rows: list[Row]) -> list[object]:
    return [
        pytest.param(row, mode, answer, id=f"{mode}-{row.name}-{answer}")
        for mode in (READ, WRITE, NIXL)
        for row in rows
        if row.of(mode) is not None
        for answer in row.answers
    ]


@pytest.fixture(scope="module")
def pools() -> Iterator[Callable[[str], Pool]]:
    """The pool of each way of KV, which the rows of a module share."""
    made: dict[str, Pool] = {}

    def pool_of(mode: str) -> Pool:
        if mode not in made:
            made[mode] = Pool(mode)
        return made[mode]

    yield pool_of
    for pool in made.values():
        pool.close()


@pytest.mark.parametrize(("row", "mode", "answer"), cases(SHARED))
def test_a_row_is_as_the_table_says(
    pools: Callable[[str], Pool], row: Row, mode: str, answer: str
) -> None:
    """Status, body, headers, counters and time; then no slot, exchange or block is held."""
    pool = pools(mode)
    said = len(pool.stack.log())
    try:
        meets(pool, row, answer)
    except BaseException:
        print(pool.stack.log()[said:])
        raise
    finally:
        pool.heal()


@pytest.mark.parametrize(("row", "mode", "answer"), cases(OWN))
def test_a_row_with_a_pool_of_its_own(row: Row, mode: str, answer: str) -> None:
    """The same, where nobody probes the engines between the event and the request."""
    pool = Pool(mode, is_unwatched=True, has_other_connector=row.has_other_connector)
    try:
        meets(pool, row, answer)
    except BaseException:
        print(pool.stack.log())
        raise
    finally:
        pool.close()


def meets(pool: Pool, row: Row, answer: str) -> None:
    expected = row.of(pool.mode)
    assert expected is not None
    row.arrange(pool)
    watched = watched_counts(expected)
    before = [pool.count(family, labels) for family, labels, _ in watched]
    bad_lines = pool.bad_log_lines()
    is_told = expected.told_after_s is not None
    told = pool.told() if is_told else 0
    for _ in range(row.requests):
        check_answer(ask(pool, row, answer), expected)
    if is_told:
        check_notice(pool, expected, told)
    for (family, labels, by), was in zip(watched, before, strict=True):
        by = by * row.requests if family == "requests_total" else by
        moves(pool, family, labels, was + by, SETTLE_S + expected.freed_within_s)
    pool.wait_at_rest(expected.freed_within_s)
    assert pool.bad_log_lines() == bad_lines


def check_notice(pool: Pool, expected: Expected, before: int) -> None:
    """Decode is told when it may be, not before: bytes of a push could still be on their way.

    Prefill can fail before decode has begun to wait, and then nothing waits."""
    after_s, answered = expected.told_after_s, monotonic()
    assert after_s is not None
    if pool.awaited() == 0 and pool.told() == before:
        return
    until(lambda: pool.told() > before, "decode is told", after_s + SLACK_S)
    assert monotonic() - answered > after_s - EARLIER_S


def moves(pool: Pool, family: str, labels: dict[str, str], to: float, within_s: float) -> None:
    """The counter comes to `to`, and no further."""
    until(lambda: pool.count(family, labels) >= to, f"{family} {labels} at {to}", within_s)
    assert pool.count(family, labels) == to


def watched_counts(expected: Expected) -> list[tuple[str, dict[str, str], int]]:
    """(family, labels, by how much it moves)."""
    watched = [("requests_total", {"outcome": expected.outcome}, 1)]
    if expected.reason:
        watched.append(("refusals_total", {"reason": expected.reason}, 1))
    if expected.status is not None and expected.status >= 400:
        watched.append(("requests_total", {"outcome": "ok"}, 0))
    if expected.status == 200 and RECOMPUTED not in expected.counts:
        watched.append((RECOMPUTED, {}, 0))
    watched += [(family, dict(labels), 1) for family, labels in expected.counts.items()]
    return watched


def ask(pool: Pool, row: Row, answer: str) -> Ended:
    body: dict[str, object] = {"model": "sim-model", "prompt": PROMPT, "max_tokens": TOKENS}
    if answer == STREAMED:
        body["stream"] = True
    sent = json.dumps(body).encode() if row.body is None else row.body
    return Client(pool.stack.url).post("/v1/completions", sent, row.headers)


def check_answer(ended: Ended, expected: Expected) -> None:
    right = expected_text("completions", {"prompt": PROMPT}, TOKENS)
    assert ended.seconds < expected.within_s
    if expected.status is None:
        assert ended.status == 200
        assert ended.is_cut, "a clean end would look like a whole answer"
        assert not ended.is_done
        assert right.startswith(ended.text)
        return
    assert ended.status == expected.status, ended.body
    assert not ended.is_cut
    assert ended.headers.get("x-pd-error", "") == expected.reason
    if expected.status == 200:
        assert ended.text == right
        return
    assert ended.headers["content-type"].startswith("application/json")
    if expected.body is not None:
        assert json.loads(ended.body) == expected.body
        assert ended.body == json.dumps(expected.body).encode(), "byte for byte"
        return
    error = json.loads(ended.body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == expected.reason
    assert ("retry-after" in ended.headers) == (expected.status == 503)
