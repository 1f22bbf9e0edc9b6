"""Failures that no single fault of an engine brings about: processes that die, and limits that
meet."""

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from sidecar.sim.model import expected_text
from tests.e2e.stack import until
from tests.failures.asking import Client, Ended
from tests.failures.pool import DEFER_S, PUSH_LIMIT_S, SETTLE_S, Pool

pytestmark = pytest.mark.e2e

PROMPT, TOKENS = "Whatever dies", 6
BODY = b'{"model":"sim-model","prompt":"Whatever dies","max_tokens":6%b}'
STREAMED, WHOLE = BODY % b',"stream":true', BODY % b""


@pytest.fixture
def pool_of() -> Iterator[Callable[..., Pool]]:
    made: list[Pool] = []

    def make(mode: str, **what: object) -> Pool:
        made.append(Pool(mode, **what))
        return made[-1]

    yield make
    for pool in made:
        print(pool.stack.log())
        pool.close()


def ask(pool: Pool, body: bytes = STREAMED) -> Ended:
    return Client(pool.stack.url).post("/v1/completions", body, {})


def asked(pool: Pool, body: bytes, executor: ThreadPoolExecutor) -> "Future[Ended]":
    """A request that prefill holds."""
    for engine in pool.prefill:
        engine.ask("hold", hold=True, limit_s=10)
    future = executor.submit(ask, pool, body)
    until(lambda: sum(e.state()["holding_now"] for e in pool.prefill) == 1, "prefill has it")
    if pool.mode == "WRITE":
        until(lambda: sum(e.state()["waiting"] for e in pool.decode) == 1, "decode waits")
    return future


def serves(pool: Pool) -> None:
    """All is well again."""
    right = expected_text("completions", {"prompt": PROMPT}, TOKENS)

    def is_served() -> bool:
        try:
            return ask(pool).status == 200
        except ConnectionError:  # Envoy is away
            return False

    until(is_served, "it serves again")
    assert ask(pool).text == right


def test_an_answer_that_is_held_too_long_is_504(pool_of: Callable[..., Pool]) -> None:
    """WRITE: decode's 2xx waits for prefill, and Envoy's clock runs: a clear error, no cut stream;
    prefill goes on, for decode's blocks wait for its push."""
    pool = pool_of("WRITE", prefill={"timeout_s": 20.0})
    with ThreadPoolExecutor(1) as executor:
        future = asked(pool, STREAMED, executor)
        ended = future.result(10)
    assert (ended.status, ended.headers["x-pd-error"]) == (504, "decode_timeout")
    until(lambda: pool.count("refusals_total", {"reason": "decode_timeout"}) == 1, "counted")
    until(lambda: sum(e.state()["leaked_transfers"] for e in pool.decode) == 1, "decode waits on")
    assert sum(e.state()["holding_now"] for e in pool.prefill) == 1
    for engine in pool.prefill:
        engine.ask("hold", hold=False)
    pool.wait_at_rest(1.0)
    assert pool.count("requests_total", {"outcome": "decode_failed"}) == 1
    serves(pool)


def test_a_decode_that_dies_while_its_answer_is_held(pool_of: Callable[..., Pool]) -> None:
    """WRITE: its headers were there and had not gone out, so the client gets a clear error."""
    pool = pool_of("WRITE", prefill={"timeout_s": 20.0}, decode={"idle_timeout_s": 20.0})
    with ThreadPoolExecutor(1) as executor:
        future = asked(pool, STREAMED, executor)
        (victim,) = [e for e in pool.decode if e.state()["waiting"]]
        victim.ask("faults", kind="die", down_s=1)
        ended = future.result(10)
    assert (ended.status, ended.headers["x-pd-error"]) == (503, "decode_reset")
    assert ended.headers["retry-after"] == "1"
    until(lambda: pool.count("refusals_total", {"reason": "decode_reset"}) == 1, "counted")
    for engine in pool.prefill:
        engine.ask("hold", hold=False)
    pool.wait_at_rest(DEFER_S + PUSH_LIMIT_S)
    serves(pool)


@pytest.mark.parametrize("mode", ["READ", "WRITE"])
@pytest.mark.parametrize("body", [STREAMED, WHOLE], ids=["streamed", "whole"])
def test_what_a_killed_worker_held_ends_with_503(
    pool_of: Callable[..., Pool], mode: str, body: bytes
) -> None:
    """Never a hang; prefill is aborted by the closed connection, and in WRITE the next worker finds
    in the journal what decode waits for."""
    pool = pool_of(mode)
    (worker,) = pool.stack.child_pids("worker")
    with ThreadPoolExecutor(1) as executor:
        future = asked(pool, body, executor)
        os.kill(worker, signal.SIGKILL)
        ended = future.result(10)
    assert (ended.status, ended.headers["x-pd-error"]) == (503, "no_worker")
    assert ended.headers["retry-after"] == "1"
    until(lambda: pool.count("refusals_total", {"reason": "no_worker"}) >= 1, "counted", SETTLE_S)
    assert pool.count("requests_total", {"outcome": "refused"}) >= 1
    for engine in pool.prefill:
        engine.ask("hold", hold=False)
    pool.wait_at_rest(DEFER_S + PUSH_LIMIT_S)
    freed = 1 if mode == "WRITE" else 0
    until(lambda: pool.count("released_transfers_total", {}) == freed, "counted", SETTLE_S)
    serves(pool)


@pytest.mark.parametrize("mode", ["READ", "WRITE"])
def test_the_exchanges_of_a_killed_envoy_are_lost(pool_of: Callable[..., Pool], mode: str) -> None:
    """Counted as such, every slot and block free; the sidecar starts Envoy again."""
    pool = pool_of(mode)
    with ThreadPoolExecutor(1) as executor:
        future = asked(pool, STREAMED, executor)
        os.kill(pool.stack.envoy_pid(), signal.SIGKILL)
        with pytest.raises(Exception, match=r"(?i)connection|remote end"):
            future.result(10)
    for engine in pool.prefill:
        engine.ask("hold", hold=False)
    lost = {"outcome": "lost"}
    until(lambda: pool.count("requests_total", lost) == 1, "closed as lost", 2 + SETTLE_S)
    assert pool.count("lost_exchanges_total", {}) == 1
    pool.wait_at_rest(DEFER_S)
    serves(pool)


def test_a_prefill_engine_that_dies_before_it_pushed(pool_of: Callable[..., Pool]) -> None:
    """WRITE: prefill had answered, so decode's answer was let go; then nobody pushes. Decode is
    told when prefill is known to have died, and ends its stream with an error."""
    pool = pool_of("WRITE", decode={"headers_timeout_s": 6.0, "idle_timeout_s": 8.0})
    pool.fault(pool.decode, "decode", "slow", delay_s=1.5)
    with ThreadPoolExecutor(1) as executor:
        future = executor.submit(ask, pool)
        until(lambda: any(e.state()["held_transfers"] for e in pool.prefill), "prefill answered")
        (victim,) = [e for e in pool.prefill if e.state()["held_transfers"]]
        victim.ask("faults", kind="die", down_s=3)
        ended = future.result(10)
    assert (ended.status, ended.is_cut) == (200, False)
    assert b'data: {"error"' in ended.body
    pool.wait_at_rest(PUSH_LIMIT_S + SETTLE_S)
    assert sum(engine.state()["failed_by_notify"] for engine in pool.decode) == 1
    pool.heal()
    serves(pool)


def test_without_leave_nothing_is_sent_and_all_is_counted(pool_of: Callable[..., Pool]) -> None:
    """`engine.release_kv` off, the default: decode's blocks stay taken, and the metric says so."""
    pool = pool_of("WRITE", engine={"release_kv": False})
    pool.fault(pool.prefill, "prefill", "hang")
    assert ask(pool).status == 504
    until(lambda: pool.count("orphaned_transfers_total", {}) == 1, "counted", SETTLE_S)
    assert pool.count("released_transfers_total", {}) == 0
    until(lambda: sum(e.state()["leaked_transfers"] for e in pool.decode) == 1, "decode is closed")
    assert sum(e.state()["failed_by_notify"] for e in pool.decode) == 0


def test_an_older_engine_is_never_sent_what_would_hurt_it(pool_of: Callable[..., Pool]) -> None:
    """Before 0.33 `write_failed` ends the notify thread: counted instead, though it is allowed."""
    pool = pool_of("WRITE", version="0.32.0")
    pool.fault(pool.prefill, "prefill", "hang")
    assert ask(pool).status == 504
    until(lambda: pool.count("orphaned_transfers_total", {}) == 1, "counted", SETTLE_S)
    assert sum(e.state()["notify_threads_dead"] for e in pool.engines) == 0
    pool.heal()
    serves(pool)
