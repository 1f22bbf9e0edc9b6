"""A client that leaves gives everything back: slots here, requests and blocks at the engines."""

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

from tests.e2e.stack import Engine, Stack, until

pytestmark = pytest.mark.e2e


async def leave(stack: Stack, body: dict[str, Any], when: Callable[[], bool]) -> None:
    """Ask for a stream and hang up once `when` is true."""

    async def ask() -> None:
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{stack.url}/v1/completions", json=body) as response,
        ):
            await response.read()

    task = asyncio.create_task(ask())
    await asyncio.to_thread(until, when, "the moment to leave")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


STREAM = {"model": "sim-model", "prompt": "hello there", "max_tokens": 5, "stream": True}


def ends(stack: Stack, phase: str) -> None:
    """The exchange ends as cancelled, and the phase is counted.

    One that was never placed has no record of its worker, and is closed 2 s later."""
    until(lambda: stack.metric("pd_sidecar_cancellations_total", phase=phase) == 1, "counted", 6)
    until(lambda: stack.metric("pd_sidecar_requests_total", outcome="cancelled") == 1, "ended", 6)


def total(engines: list[Engine], key: str) -> int:
    return sum(engine.state()[key] for engine in engines)


def test_leaving_during_prefill_aborts_it_in_read(stack_of: Callable[..., Stack]) -> None:
    """The prefill leg is closed and frees its blocks; decode never hears of the request."""
    stack = stack_of()
    prefill, decode = stack.fleet([1], [1], "READ")
    prefill[0].ask("hold", hold=True, limit_s=30)
    asyncio.run(leave(stack, STREAM, lambda: prefill[0].state()["holding_now"] == 1))
    until(lambda: prefill[0].state()["holding_now"] == 0, "prefill was aborted", 2)
    ends(stack, "prefill")
    until(lambda: stack.in_flight() == {"prefill": 0, "decode": 0}, "slots are free", 3)
    assert total(decode, "running") == 0
    assert total(prefill, "held_blocks") == 0
    assert prefill[0].state()["aborted"] == 1


def test_leaving_during_prefill_lets_it_push_in_write(stack_of: Callable[..., Stack]) -> None:
    """Decode is closed at once, but its blocks wait for prefill's push (protocol e): prefill goes
    on, holding its slot, until they are free."""
    stack = stack_of()
    prefill, decode = stack.fleet([1], [1], "WRITE")
    prefill[0].ask("hold", hold=True, limit_s=30)
    asyncio.run(leave(stack, STREAM, lambda: prefill[0].state()["holding_now"] == 1))
    until(lambda: total(decode, "running") + total(decode, "waiting") == 0, "decode is closed", 3)
    ends(stack, "decode")
    assert prefill[0].state()["holding_now"] == 1
    assert total(decode, "leaked_transfers") == 1
    until(lambda: stack.in_flight() == {"prefill": 1, "decode": 0}, "prefill holds its slot", 3)
    prefill[0].ask("hold", hold=False)
    until(lambda: total(decode, "leaked_blocks") == 0, "prefill has pushed", 3)
    until(lambda: stack.in_flight() == {"prefill": 0, "decode": 0}, "slots are free", 3)
    assert total(prefill, "held_blocks") == 0
    assert total(prefill, "aborted") == 0
    assert stack.metric("pd_sidecar_orphaned_transfers_total") == 0


@pytest.mark.parametrize("mode", ["READ", "WRITE"])
@pytest.mark.parametrize(
    ("speed", "moment"),
    [
        ({"ttft_ms": 20_000}, lambda state: state["running"] == 1),
        ({"tokens_per_s": 5}, lambda state: state["tokens_sent"] >= 3),
    ],
    ids=["waits", "streams"],
)
def test_leaving_while_decode_works_closes_it(
    stack_of: Callable[..., Stack],
    mode: str,
    speed: dict[str, float],
    moment: Callable[[dict[str, Any]], bool],
) -> None:
    """Before the first token as within the answer: decode sees the disconnect, nothing is held."""
    stack = stack_of()
    prefill, decode = stack.fleet([1], [1], mode)
    decode[0].ask("pace", **speed)
    asyncio.run(leave(stack, STREAM | {"max_tokens": 100}, lambda: moment(decode[0].state())))
    until(lambda: total(decode, "running") == 0, "decode is closed", 3)
    ends(stack, "decode")
    until(lambda: stack.in_flight() == {"prefill": 0, "decode": 0}, "slots are free", 3)
    until(lambda: total([*prefill, *decode], "held_blocks") == 0, "no block is held", 3)
    assert total(decode, "leaked_blocks") == 0
    assert stack.metric("pd_sidecar_in_flight_prompt_bytes") == 0


def test_leaving_during_the_upload_takes_nothing(stack_of: Callable[..., Stack]) -> None:
    """No engine hears of it, and it is counted."""
    stack = stack_of()
    prefill, decode = stack.fleet([1], [1])
    replies = "http.edge.ext_proc.pd.stream_msgs_received"
    before = stack.envoy_stat(replies)
    host, _, port = stack.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n"
            b"Content-Type: application/json\r\n\r\n{"
        )
        until(lambda: stack.envoy_stat(replies) > before, "the sidecar has it")
    ends(stack, "upload")
    assert stack.metric("pd_sidecar_placements_total") == 0
    assert prefill[0].last("prefill") == decode[0].last("decode") == []


@pytest.mark.parametrize("mode", ["READ", "WRITE"])
def test_leaving_as_prefill_ends_leaves_no_block(stack_of: Callable[..., Stack], mode: str) -> None:
    """The worker learns of both at once. Whatever it hears first, what prefill committed is
    fetched, pushed, released or given up by prefill; and nothing is sent that could hurt."""
    count = 8
    config = {"engine": {"release_kv": True, "transfer_timeout_s": 0.5}}
    stack = stack_of(config)
    (prefill,), (decode,) = stack.fleet([1], [1], mode, defer_timeout_s=2)
    (worker,) = stack.child_pids("worker")
    for _ in range(count):
        prefill.ask("hold", hold=True, limit_s=30)

        def prefill_ends() -> bool:
            if prefill.state()["holding_now"] == 0:
                return False
            os.kill(worker, signal.SIGSTOP)
            prefill.ask("hold", hold=False)
            until(lambda: prefill.state()["running"] == 0, "prefill has answered")
            return True

        try:
            asyncio.run(leave(stack, STREAM, prefill_ends))
            until(lambda: stack.envoy_stat("http.edge.downstream_rq_active") == 0, "Envoy saw it")
        finally:
            os.kill(worker, signal.SIGCONT)
        until(lambda: stack.exchanges() == [], "it has ended", 5)
    engines = [prefill, decode]
    until(lambda: total(engines, "held_blocks") == 0, "prefill holds nothing", 5)
    try:
        until(lambda: total(engines, "leaked_blocks") == 0, "decode holds nothing", 5)
    finally:
        print(prefill.state(), decode.state())
    until(lambda: stack.in_flight() == {"prefill": 0, "decode": 0}, "slots are free", 3)
    state = prefill.state()
    assert sum(state["ranks"]["prefill"]) == count
    assert state["released"] + state["reaped"] == count, state
    assert total(engines, "early_releases") + total(engines, "notify_threads_dead") == 0
    cancelled = {"outcome": "cancelled"}
    until(lambda: stack.metric("pd_sidecar_requests_total", **cancelled) == count, "counted", 5)
