"""A client that leaves gives everything back: slots here, requests and blocks at the engines."""

import asyncio
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
    """The exchange ends as cancelled, and the phase is counted."""
    until(lambda: stack.metric("pd_sidecar_cancellations_total", phase=phase) == 1, "counted", 3)
    until(lambda: stack.metric("pd_sidecar_requests_total", outcome="cancelled") == 1, "ended", 3)


def total(engines: list[Engine], key: str) -> int:
    return sum(engine.state()[key] for engine in engines)


def test_leaving_during_prefill_aborts_it_in_read(stack_of: Callable[..., Stack]) -> None:
    """The prefill leg is closed and frees its blocks; decode never hears of the request."""
    stack = stack_of()
    prefill, decode = stack.fleet([1], [1], "READ")
    prefill[0].ask("hold", hold=True, limit_s=30)
    asyncio.run(leave(stack, STREAM, lambda: prefill[0].state()["holding_now"] == 1))
    until(lambda: prefill[0].state()["holding_now"] == 0, "prefill was aborted", 2)
    until(lambda: stack.in_flight() == {"prefill": 0, "decode": 0}, "slots are free", 3)
    ends(stack, "prefill")
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
def test_leaving_in_mid_stream_closes_decode(stack_of: Callable[..., Stack], mode: str) -> None:
    """Decode sees the disconnect; slots are free and nothing is held."""
    stack = stack_of()
    prefill, decode = stack.fleet([1], [1], mode, tokens_per_s=5)
    body = {"model": "sim-model", "prompt": "hello there", "max_tokens": 100, "stream": True}
    asyncio.run(leave(stack, body, lambda: total(decode, "tokens_sent") >= 3))
    until(lambda: total(decode, "running") == 0, "decode is closed", 3)
    until(lambda: stack.in_flight() == {"prefill": 0, "decode": 0}, "slots are free", 3)
    assert total(prefill, "held_blocks") + total(decode, "held_blocks") == 0
    assert stack.metric("pd_sidecar_in_flight_prompt_bytes") == 0
    until(lambda: stack.metric("pd_sidecar_requests_total", outcome="cancelled") == 1, "ended", 3)
