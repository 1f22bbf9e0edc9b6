"""Instances whose requests fail leave placement and come back; never all of them for resets."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable
from http.client import IncompleteRead
from typing import Any

import aiohttp
import pytest

from tests.e2e.load import Answer, run, run_right, stream
from tests.e2e.stack import Engine, Stack, http, until

pytestmark = [pytest.mark.e2e, pytest.mark.timed]

BACKOFF_S = 2.0
PROBE_S = 0.5
CONFIG: dict[str, Any] = {
    "registration": {"ttl_s": 60},
    "probe": {"interval_s": PROBE_S, "timeout_s": 0.5},
    "ejection": {"backoff_s": BACKOFF_S},
    "decode": {"headers_timeout_s": 1, "idle_timeout_s": 5, "whole_timeout_s": 1},
    "prefill": {"timeout_s": 4},
    "tuning": {"access_log": {"buffer_interval_ms": 50}},
}
EJECTIONS = "pd_sidecar_instance_ejections_total"


def state(stack: Stack, engine: Engine) -> str:
    return str(stack.instances()[engine.address]["state"])


def in_state(stack: Stack, wanted: str) -> int:
    return sum(one["state"] == wanted for one in stack.instances().values())


def legs(engine: Engine) -> int:
    ranks = engine.state()["ranks"]
    return sum(sum(ranks[leg]) for leg in ("prefill", "decode", "plain"))


def fail(leg: str, *engines: Engine, **fault: object) -> None:
    for engine in engines:
        engine.ask("faults", leg=leg, count=-1, **fault)


def heal(*engines: Engine) -> None:
    for engine in engines:
        assert http("DELETE", f"{engine.url}/sim/faults")[0] == 200


def ask(stack: Stack, body: dict[str, Any]) -> None:
    """One request, however it ends: an answer that breaks off too."""
    with contextlib.suppress(IncompleteRead):
        http("POST", f"{stack.url}/v1/completions", body)


def said(stack: Stack, engine: Engine, kind: str) -> int:
    """Lines of the log about it."""
    return stack.log().count(f"{engine.address} {kind} ")


def test_a_prefill_engine_that_dies_is_ejected_and_costs_no_request(
    stack_of: Callable[..., Stack],
) -> None:
    """kill -9 between two probes: every next request is served (READ tries another slot), it is
    ejected once, for `refused`; restarted on its ports it serves again, not before its back-off."""
    # The engines were just probed, so for 8 s only requests can notice.
    probe = {"interval_s": 8, "timeout_s": 1}
    stack = stack_of({**CONFIG, "probe": probe})
    prefill, _ = stack.fleet([1, 1], [1])
    dead = prefill[0]
    dead.process.kill()
    dead.process.wait()
    since = time.monotonic()
    run_right(stack.url, 20, 4)
    until(lambda: state(stack, dead) == "ejected", "control has heard of it", 2)
    assert stack.metric(EJECTIONS, instance=dead.address) == 1
    assert stack.metric(EJECTIONS, instance=dead.address, reason="refused") == 1
    assert said(stack, dead, "ejected") == 1
    ports = {name: dead.ready[name] for name in ("handshake_port", "notify_port")}
    again = stack.engine("prefill", http=dead.address, ping_interval_s=1, **ports)
    stack.wait_placeable(again, timeout_s=20)
    assert time.monotonic() - since >= BACKOFF_S
    assert said(stack, dead, "recovered") == 1
    run_right(stack.url, 20, 4)
    assert legs(again) == 10


@pytest.mark.parametrize(
    ("mode", "leg", "fault", "reason"),
    [
        ("READ", "decode", {"kind": "reset"}, "reset"),
        ("READ", "decode", {"kind": "cut", "after_tokens": 1}, "reset"),
        ("READ", "decode", {"kind": "hang"}, "timeout"),
        ("WRITE", "decode", {"kind": "status", "status": 500}, "error"),
        ("READ", "prefill", {"kind": "reset"}, "reset"),
        ("WRITE", "prefill", {"kind": "status", "status": 500}, "error"),
        ("READ", "plain", {"kind": "reset", "when": "after"}, "reset"),
    ],
)
def test_three_failures_in_a_row_eject(
    stack_of: Callable[..., Stack], mode: str, leg: str, fault: dict[str, Any], reason: str
) -> None:
    """Whichever leg, and whoever sees it (worker or Envoy): out for its reason, though its /health
    is good; the other one serves; healed and after the back-off it is used again."""
    stack = stack_of(CONFIG)
    prefill, decode = stack.fleet([1, 1], [1, 1], mode)
    bad = (decode if leg == "decode" else prefill)[0]
    fail(leg, bad, **fault)
    # Two choices: served whole by a prefill engine, as Envoy's leg alone.
    body = {"prompt": "x", "max_tokens": 2, "stream": leg == "decode", "n": 1 + (leg == "plain")}
    sent, deadline = 0, time.monotonic() + 20
    while state(stack, bad) == "ready":
        ask(stack, body)
        sent += 1
        assert time.monotonic() < deadline, "it is never ejected"
    assert state(stack, bad) == "ejected"
    assert sent >= 3, "fewer than three requests failed there"
    assert stack.metric(EJECTIONS) == stack.metric(EJECTIONS, instance=bad.address, reason=reason)
    assert stack.metric(EJECTIONS) == 1
    run_right(stack.url, 10, 2)
    heal(bad)
    before = legs(bad)
    stack.wait_placeable(bad, timeout_s=BACKOFF_S + 5)
    run_right(stack.url, 10, 2)
    assert legs(bad) > before
    assert stack.metric(EJECTIONS) == 1


def test_a_storm_of_400s_ejects_nobody(stack_of: Callable[..., Stack]) -> None:
    """Two hundred refused bodies at each leg, and as many that the engines really refuse."""
    stack = stack_of(CONFIG)
    prefill, decode = stack.fleet([1, 1], [1, 1])

    def storm() -> set[int]:
        answers = asyncio.run(run(stack.url, 200, 8))
        return {answer.status for answer in answers}

    for leg, engines in (("prefill", prefill), ("decode", decode)):
        fail(leg, *engines, kind="status", status=400)
        assert storm() == {400}, leg
        heal(*engines)
    for _ in range(200):
        body = {"prompt": "x", "max_tokens": -1}
        assert http("POST", f"{stack.url}/v1/completions", body)[0] == 400
    assert len(stack.placeable()) == 4
    assert stack.metric(EJECTIONS) == 0
    run_right(stack.url, 8, 4)


def test_a_paused_engine_is_not_ejected(stack_of: Callable[..., Stack]) -> None:
    """503 from decode is retryable: its /health says when an engine is really gone."""
    stack = stack_of(CONFIG)
    _, decode = stack.fleet([1], [1, 1])
    fail("decode", decode[0], kind="status", status=503)
    answers = asyncio.run(run(stack.url, 40, 4))
    assert [answer.status for answer in answers].count(503) == 20
    assert len(stack.placeable()) == 3
    assert stack.metric(EJECTIONS) == 0


def test_resets_everywhere_eject_half(stack_of: Callable[..., Stack]) -> None:
    """All four prefill engines reset: two are ejected and two go on trying; healed, all serve."""
    stack = stack_of(CONFIG)
    prefill, _ = stack.fleet([1, 1, 1, 1], [1])
    fail("prefill", *prefill, kind="reset")
    for _ in range(10):
        answers = asyncio.run(run(stack.url, 10, 4))
        assert {answer.status for answer in answers} == {502}
        assert in_state(stack, "ejected") <= 2
    assert stack.metric(EJECTIONS, reason="reset") >= 2
    heal(*prefill)
    stack.wait_placeable(*prefill, timeout_s=15)
    run_right(stack.url, 20, 4)


def test_what_ran_out_of_time_while_we_stood_still_ejects_nobody(
    stack_of: Callable[..., Stack],
) -> None:
    """Everything is stopped for longer than the prefill limit (a paused container): the requests
    get their 504 by our own clock, and no engine is blamed for it."""
    stack = stack_of(CONFIG)
    prefill, _ = stack.fleet([1, 1], [1])
    assert stack.process is not None
    sidecar = [stack.process.pid, *stack.child_pids()]
    everybody = [*sidecar, stack.envoy_pid(), *(engine.process.pid for engine in stack.engines)]
    for engine in prefill:
        engine.ask("hold", hold=True, limit_s=60)

    def stand_still() -> None:
        until(lambda: stack.in_flight()["prefill"] == 12, "all wait for prefill")
        for pid in everybody:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(CONFIG["prefill"]["timeout_s"] + 1)
        for pid in everybody:
            os.kill(pid, signal.SIGCONT)

    async def scenario() -> list[Answer]:
        load = asyncio.create_task(run(stack.url, 12, 12))
        await asyncio.to_thread(stand_still)
        return await load

    answers = asyncio.run(scenario())
    assert {answer.status for answer in answers} == {504}
    until(lambda: stack.in_flight()["prefill"] == 0, "all are accounted for")
    assert stack.metric(EJECTIONS) == 0
    assert stack.placeable() == {engine.address for engine in stack.engines}


STUCK_S = 0.3
"""after so long without an answer a request no longer counts as one of the eight"""
DEADLINE_S = 2.0


def rests(read: Callable[[], float]) -> bool:
    """Whether it is the same over five batches of records."""
    before = read()
    time.sleep(0.25)
    return read() == before


async def keep_eight_going(url: str, over: asyncio.Event) -> list[tuple[Answer, float]]:
    """Until `over` eight requests that are served or may yet be; every answer and its seconds."""
    gate = asyncio.Semaphore(8)
    answers: list[tuple[Answer, float]] = []
    tasks: set[asyncio.Task[None]] = set()

    async def one(session: aiohttp.ClientSession, number: int) -> None:
        began = time.monotonic()
        asked = asyncio.create_task(stream(session, url, f"request {number}", 2))
        await asyncio.wait([asked], timeout=STUCK_S)
        gate.release()
        answers.append((await asked, time.monotonic() - began))

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        while not over.is_set():
            await gate.acquire()
            tasks.add(asyncio.create_task(one(session, len(tasks))))
        await asyncio.gather(*tasks)
    return answers


def test_a_stopped_prefill_engine_delays_no_request_that_goes_elsewhere(
    stack_of: Callable[..., Stack],
) -> None:
    """SIGSTOP of one of three: what is placed elsewhere is served within 2 s all the time; nothing
    is placed there once three probes timed out; after SIGCONT it is used again, at once, whatever
    failed there meanwhile."""
    stack = stack_of(CONFIG)
    prefill, _ = stack.fleet([1, 1, 1], [1])
    stopped = prefill[1]
    name = stack.instances()[stopped.address]["name"]

    def placed_there() -> float:
        return stack.metric("pd_sidecar_placements_total", instance=stopped.address)

    async def scenario() -> list[tuple[Answer, float]]:
        over = asyncio.Event()
        load = asyncio.create_task(keep_eight_going(stack.url, over))
        aside = asyncio.to_thread
        await aside(until, lambda: placed_there() > 20, "it serves")
        stopped.send(signal.SIGSTOP)
        await aside(until, lambda: state(stack, stopped) == "unhealthy", "the probes notice")
        await aside(until, lambda: rests(placed_there), "the view is with the worker")
        count = await aside(placed_there)
        served = await aside(stack.metric, "pd_sidecar_requests_total", outcome="ok")
        more = served + 100
        await aside(
            until,
            lambda: stack.metric("pd_sidecar_requests_total", outcome="ok") > more,
            "a hundred more",
        )
        assert await aside(placed_there) == count
        stopped.send(signal.SIGCONT)
        await aside(until, lambda: placed_there() > count + 20, "it is used again")
        over.set()
        return await load

    answers = asyncio.run(scenario())
    slow = [seconds for _, seconds in answers if seconds >= DEADLINE_S]
    elsewhere = [
        (answer, seconds)
        for answer, seconds in answers
        if not answer.headers.get("x-pd-prefill", "").startswith(name) and answer.status != 504
    ]
    assert all(answer.is_right for answer, _ in elsewhere)
    assert max(seconds for _, seconds in elsewhere) < DEADLINE_S
    assert 0 < len(slow) < 200, "those that hung there, and they alone"
    assert stack.metric(EJECTIONS) == 0
    assert state(stack, stopped) == "ready"
