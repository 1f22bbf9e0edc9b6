"""Faults of the whole engine: it refuses connections for a while, or dies and comes back."""

import asyncio
import json
import socket
import time
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
import zmq

from sidecar.sim.model import expected_text

pytestmark = pytest.mark.asyncio


def _dial(engine: Any) -> socket.socket:
    host, port = engine.ready["http"].split(":")
    return socket.create_connection((host, int(port)), timeout=10)


async def test_refuse_closes_the_listener_and_leaves_connections_alone(lab, body_of) -> None:
    """A new dial is refused, a stream that runs ends right, and later the port listens again."""
    engine = lab.start("prefill", tokens_per_s=40)
    body = body_of("completions", "hello", stream=True, max_tokens=20)
    running = asyncio.ensure_future(lab.ask(engine, "completions", body))
    await lab.until(engine, lambda state: state["tokens_sent"] >= 1)
    listed = await lab.control(engine, "faults", kind="refuse", for_s=0.6)
    assert listed == [{"kind": "refuse", "for_s": 0.6}]
    start = time.monotonic()
    with pytest.raises(ConnectionRefusedError):
        _dial(engine)
    assert (await running).text == expected_text("completions", body)
    await lab.until_refused(int(engine.ready["http"].split(":")[1]), False)
    assert time.monotonic() - start >= 0.3
    assert (await lab.ask(engine, "completions", body)).status == 200
    assert (await lab.state(engine))["lives"] == 1
    async with lab.http.get(f"{engine.url}/sim/faults") as response:
        assert await response.json() == []


async def test_clearing_ends_a_refusal(lab) -> None:
    """DELETE opens the door at once, over a connection that was open."""
    engine = lab.start("prefill")
    await lab.control(engine, "faults", kind="refuse", for_s=3600)
    await lab.control(engine, "faults", kind="refuse", for_s=3600)
    with pytest.raises(ConnectionRefusedError):
        _dial(engine)
    async with lab.http.delete(f"{engine.url}/sim/faults") as response:
        assert await response.json() == []
    _dial(engine).close()


async def test_death_resets_connections_and_ends_what_runs(lab, body_of) -> None:
    """A running request is reset, nothing listens for `down_s`, then the same ports do again."""
    engine = lab.start("prefill", ttft_ms=3600_000)
    body = body_of("completions", "hello")
    running = asyncio.ensure_future(lab.ask(engine, "completions", body))
    await lab.until(engine, lambda state: state["running"] == 1)
    with _dial(engine) as idle:
        await lab.control(engine, "faults", kind="die", down_s=0.5)
        with pytest.raises(aiohttp.ClientError):
            await running
        with pytest.raises(ConnectionResetError):
            await asyncio.to_thread(idle.recv, 1)
    for name in ("handshake_port", "notify_port"):
        await lab.until_refused(engine.ready[name], True)
    with pytest.raises(ConnectionRefusedError):
        _dial(engine)
    for name in ("handshake_port", "notify_port"):
        await lab.until_refused(engine.ready[name], False)
    state = await lab.until_alive(engine)
    assert (state["lives"], state["running"], state["ranks"]["plain"]) == (2, 0, [0])


async def test_an_engine_may_die_while_it_refuses(lab) -> None:
    """The next life listens, and the refusal of the last one is over."""
    engine = lab.start("prefill")
    await lab.control(engine, "faults", kind="refuse", for_s=3600)
    await lab.control(engine, "faults", kind="die", down_s=0.1)
    assert (await lab.until_alive(engine))["lives"] == 2
    async with lab.http.get(f"{engine.url}/sim/faults") as response:
        assert await response.json() == []


async def test_a_new_life_knows_nothing_of_the_old(lab, body_of) -> None:
    """Held blocks, faults and paces are gone; a decode leg with the old parameters fails."""
    prefill, decode = lab.pair("READ")
    body = body_of("completions", "hello")
    old = await lab.prefill(prefill, "completions", body)
    await lab.control(prefill, "faults", leg="prefill", kind="hang", count=-1)
    await lab.control(prefill, "faults", kind="die", down_s=0.1)
    state = await lab.until_alive(prefill)
    assert (state["held_transfers"], state["held_blocks"], state["lives"]) == (0, 0, 2)
    late = await lab.decode(decode, "completions", body, **old.json["kv_transfer_params"])
    assert late.status == 500
    fresh = await lab.prefill(prefill, "completions", body)
    params = fresh.json["kv_transfer_params"]
    answer = await lab.decode(decode, "completions", body, **params)
    assert answer.text == expected_text("completions", body)


async def test_a_dead_decode_forgets_who_waits_and_what_leaked(lab, body_of) -> None:
    """After its death a WRITE decode engine serves new pairs, and waits for nobody."""
    prefill, decode = lab.pair("WRITE")
    body = body_of("completions", "hello")
    legs = [lab.write_legs(prefill, decode, "completions", body) for _ in range(2)]
    waiting = [asyncio.ensure_future(second) for _, second in legs]
    for first, _ in legs:
        first.close()
    await lab.until(decode, lambda state: state["waiting"] == 2)
    waiting[0].cancel()
    await lab.until(decode, lambda state: state["leaked_transfers"] == 1)
    await lab.control(decode, "faults", kind="die", down_s=0.1)
    with pytest.raises(aiohttp.ClientError):
        await waiting[1]
    state = await lab.until_alive(decode)
    assert (state["waiting"], state["leaked_blocks"], state["running"]) == (0, 0, 0)
    again = lab.write_legs(prefill, decode, "completions", body)
    assert (await asyncio.gather(*again))[1].text == expected_text("completions", body)


async def test_heartbeats_stop_with_the_engine_and_come_back(lab) -> None:
    """No ping comes while the engine is down, though its interval is over many times."""
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.setsockopt(zmq.LINGER, 0)
    port = router.bind_to_random_port("tcp://127.0.0.1")
    try:
        engine = lab.start("prefill", proxy=f"127.0.0.1:{port}", ping_interval_s=0.05)
        await lab.control(engine, "faults", kind="die", down_s=1.5)
        await lab.until_refused(int(engine.ready["http"].split(":")[1]), True)
        late = 0  # those that were on their way: one that beats on has sent ten within the wait
        while await asyncio.to_thread(router.poll, 500):
            router.recv_multipart()
            late += 1
            assert late < 10
        assert await asyncio.to_thread(router.poll, 10_000)
        ping = msgspec.msgpack.decode(router.recv_multipart()[-1])
        assert ping["http_address"] == engine.ready["http"]
    finally:
        router.close()
        context.term()


async def test_a_stop_ends_an_engine_that_is_down(lab) -> None:
    """The lifeline counts between two lives too."""
    engine = lab.start("prefill")
    await lab.control(engine, "faults", kind="die", down_s=3600)
    await lab.until_refused(int(engine.ready["http"].split(":")[1]), True)
    engine.close_lifeline()
    assert await asyncio.to_thread(engine.process.wait, 5) == 0


async def test_death_without_return_ends_the_process(lab) -> None:
    """With `down_s` 0 the process is gone, with a status that says so."""
    engine = lab.start("prefill")
    await lab.control(engine, "faults", kind="die", down_s=0)
    assert await asyncio.to_thread(engine.process.wait, 5) == 1
    lab.forget(engine)


async def test_an_engine_lives_many_lives(lab, body_of) -> None:
    """Ten deaths in a row leave neither ports nor file descriptors behind."""
    engine = lab.start("prefill", dp_size=4)
    body = body_of("completions", "hello")
    counts = []
    for number in range(10):
        await lab.control(engine, "faults", kind="die", down_s=0.01)
        state = await lab.until_alive(engine, life=number + 2)
        assert state["lives"] == number + 2
        assert (await lab.ask(engine, "completions", body)).status == 200
        counts.append(len(list(_descriptors(engine))))
    assert max(counts[5:]) <= max(counts[:5]), json.dumps(counts)


def _descriptors(engine: Any) -> list[str]:
    return [entry.name for entry in Path(f"/proc/{engine.process.pid}/fd").iterdir()]
