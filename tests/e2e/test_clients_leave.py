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


def total(engines: list[Engine], key: str) -> int:
    return sum(engine.state()[key] for engine in engines)


@pytest.mark.parametrize("mode", ["READ", "WRITE"])
def test_leaving_during_prefill_aborts_it(stack_of: Callable[..., Stack], mode: str) -> None:
    """The prefill leg is closed, and decode's too in WRITE; the phase is counted."""
    stack = stack_of()
    prefill, decode = stack.fleet([1], [1], mode)
    prefill[0].ask("hold", hold=True, limit_s=30)
    body = {"model": "sim-model", "prompt": "hello there", "max_tokens": 5, "stream": True}
    asyncio.run(leave(stack, body, lambda: prefill[0].state()["holding_now"] == 1))
    until(lambda: prefill[0].state()["holding_now"] == 0, "prefill was aborted", 2)
    until(lambda: stack.in_flight() == {"prefill": 0, "decode": 0}, "slots are free", 3)
    until(lambda: total(decode, "running") + total(decode, "waiting") == 0, "decode is closed", 3)
    phase = "prefill" if mode == "READ" else "decode"
    until(lambda: stack.metric("pd_sidecar_cancellations_total", phase=phase) == 1, "counted", 3)
    until(lambda: stack.metric("pd_sidecar_requests_total", outcome="cancelled") == 1, "ended", 3)
    prefill[0].ask("hold", hold=False)
    assert total(prefill, "held_blocks") == 0


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
