"""With NIXL: clients that leave, and a prefill engine that dies. What else fails is among the
rows."""

import asyncio
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.e2e.stack import Engine, http, until
from tests.e2e.test_clients_leave import STREAM, leave
from tests.failures.pool import DEFER_S, NIXL, SETTLE_S, Pool
from tests.failures.test_more import STREAMED, WHOLE, ask, serves

pytestmark = pytest.mark.e2e

PATIENT = {"headers_timeout_s": 20.0, "idle_timeout_s": 20.0, "whole_timeout_s": 20.0}


@pytest.fixture
def pool() -> Iterator[Pool]:
    made = Pool(NIXL, prefill={"timeout_s": 20.0}, decode=PATIENT)
    yield made
    print(made.stack.log())
    made.close()


def total(engines: list[Engine], key: str) -> int:
    return sum(engine.state()[key] for engine in engines)


def hold(engines: list[Engine], is_held: bool) -> None:
    for engine in engines:
        engine.ask("hold", hold=is_held, limit_s=30)


def ends_as_cancelled(pool: Pool, count: int = 1) -> None:
    cancelled = {"outcome": "cancelled"}
    until(lambda: pool.count("requests_total", cancelled) == count, "ended", 6)


def test_leaving_during_prefill_aborts_it(pool: Pool) -> None:
    """The leg is closed, nothing is handed over, and decode never hears of it."""
    hold(pool.prefill, True)
    asyncio.run(leave(pool.stack, STREAM, lambda: total(pool.prefill, "holding_now") == 1))
    until(lambda: total(pool.prefill, "holding_now") == 0, "prefill was aborted", 2)
    ends_as_cancelled(pool)
    pool.wait_at_rest(0.3)
    assert [total(pool.prefill, key) for key in ("aborted", "released", "reaped")] == [1, 0, 0]
    assert [engine.last("decode") for engine in pool.decode] == [[], []]


def test_leaving_between_the_legs_costs_a_lease(pool: Pool) -> None:
    """Prefill has committed KV and decode was not reached: nobody can be told, so the blocks are
    free when the lease is over. Orphaned, as far as the worker hears of the KV first."""
    count = 3
    (worker,) = pool.stack.child_pids("worker")
    for made in range(1, count + 1):
        hold(pool.prefill, True)

        def prefill_ends() -> bool:
            if total(pool.prefill, "holding_now") == 0:
                return False
            os.kill(worker, signal.SIGSTOP)
            hold(pool.prefill, False)
            until(lambda: total(pool.prefill, "running") == 0, "prefill has answered")
            return True

        try:
            asyncio.run(leave(pool.stack, STREAM, prefill_ends))
            until(
                lambda: pool.stack.envoy_stat("http.edge.downstream_rq_active") == 0, "Envoy saw it"
            )
        finally:
            os.kill(worker, signal.SIGCONT)
        ends_as_cancelled(pool, made)
    pool.wait_at_rest(DEFER_S)
    assert [total(pool.prefill, key) for key in ("released", "reaped")] == [0, count]
    assert 1 <= pool.count("orphaned_transfers_total", {}) <= count


def test_leaving_while_decode_waits_frees_prefills_blocks(pool: Pool) -> None:
    """Decode has not begun to read: it is closed, and tells prefill, long before the lease ends."""
    hold(pool.decode, True)
    asyncio.run(leave(pool.stack, STREAM, lambda: total(pool.decode, "waiting") == 1))
    until(lambda: total(pool.prefill, "released_by_notify") == 1, "prefill was told", 1.5)
    ends_as_cancelled(pool)
    pool.wait_at_rest(0.3)
    assert [total(pool.prefill, key) for key in ("released", "reaped")] == [1, 0]
    assert pool.count("orphaned_transfers_total", {}) == 0


@pytest.mark.parametrize("body", [STREAMED, WHOLE], ids=["streamed", "whole"])
def test_a_prefill_engine_that_dies_after_it_answered(pool: Pool, body: bytes) -> None:
    """Decode cannot load the KV, and the client gets its error: a 500, or within a stream whose
    headers were sent; never text that is right in part."""
    hold(pool.decode, True)
    with ThreadPoolExecutor(1) as executor:
        future = executor.submit(ask, pool, body)
        until(lambda: total(pool.decode, "waiting") == 1, "decode has it")
        (victim,) = [e for e in pool.prefill if e.state()["held_transfers"]]
        victim.ask("faults", kind="die", down_s=8)
        until(lambda: http("GET", f"{victim.url}/health")[0] == 0, "it is dead")
        hold(pool.decode, False)
        ended = future.result(15)
    assert not ended.is_cut
    assert (ended.status, b'"error"' in ended.body) == (200 if body == STREAMED else 500, True)
    assert b'"text"' not in ended.body
    until(lambda: pool.held() == {}, "nothing is held", 10 + SETTLE_S)
    pool.heal()
    serves(pool)
