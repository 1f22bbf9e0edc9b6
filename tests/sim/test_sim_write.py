"""WRITE: both legs at once, prefill pushes; wrong legs hang as vLLM's do, and are counted."""

import asyncio

import pytest

from sidecar.sim.model import expected_text
from tests.ports import free_port

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize("api", ["completions", "chat"])
@pytest.mark.parametrize("stream", [False, True])
async def test_pair_answers_the_oracle(lab, body_of, api, stream) -> None:
    prefill, decode = lab.pair("WRITE")
    body = body_of(api, "once upon a time " * 100, stream=stream, max_tokens=20)
    legs = lab.write_legs(prefill, decode, api, body)
    first, answer = await asyncio.gather(*legs)
    assert first.status == 200
    assert answer.text == expected_text(api, body, 20)
    state = await lab.until(prefill, lambda state: state["released"] == 1)
    assert (state["held_transfers"], state["notices"], state["errors"]) == (0, 0, {})


async def test_legs_may_come_in_either_order(lab, body_of) -> None:
    prefill, decode = lab.pair("WRITE")
    body = body_of("completions", "hello")
    first, second = lab.write_legs(prefill, decode, "completions", body)
    waiting = asyncio.ensure_future(second)
    await lab.until(prefill, lambda state: state["notices"] == 1)
    assert (await first).status == 200
    assert (await waiting).text == expected_text("completions", body)

    first, second = lab.write_legs(prefill, decode, "completions", body)
    await first
    await lab.until(prefill, lambda state: state["held_transfers"] == 1)
    assert (await second).text == expected_text("completions", body)


async def test_every_rank_pairs_with_every_rank(lab, body_of) -> None:
    prefill, decode = lab.spawn("prefill", mode="WRITE", dp_size=2), None
    decode = lab.spawn("decode", mode="WRITE", dp_size=3)
    prefill.await_ready()
    decode.await_ready()

    async def exchange(one: int, two: int) -> None:
        body = body_of("chat", f"from {one} to {two}")
        legs = lab.write_legs(prefill, decode, "chat", body, prefill_rank=one, decode_rank=two)
        _, answer = await asyncio.gather(*legs)
        assert answer.text == expected_text("chat", body)

    await asyncio.gather(*(exchange(one, two) for one in range(2) for two in range(3)))
    assert (await lab.state(prefill))["ranks"]["prefill"] == [3, 3]
    assert (await lab.state(decode))["ranks"]["decode"] == [2, 2, 2]


async def test_decode_without_prefill_waits_until_its_client_leaves(lab, body_of) -> None:
    prefill, decode = lab.pair("WRITE")
    body = body_of("completions", "hello", stream=True)
    first, second = lab.write_legs(prefill, decode, "completions", body)
    first.close()
    waiting = asyncio.ensure_future(second)
    await lab.until(decode, lambda state: state["waiting"] == 1)
    await lab.until(prefill, lambda state: state["notices"] == 1)
    waiting.cancel()
    state = await lab.until(decode, lambda state: state["aborted"] == 1)
    assert (state["waiting"], state["leaked_transfers"], state["leaked_blocks"]) == (0, 1, 1)
    again = lab.write_legs(prefill, decode, "completions", body)
    assert (await asyncio.gather(*again))[1].text == expected_text("completions", body)


async def test_late_push_frees_leaked_blocks(lab, body_of) -> None:
    prefill, decode = lab.pair("WRITE")
    body = body_of("completions", "hello")
    first, second = lab.write_legs(prefill, decode, "completions", body)
    waiting = asyncio.ensure_future(second)
    await lab.until(prefill, lambda state: state["notices"] == 1)
    waiting.cancel()
    await lab.until(decode, lambda state: state["leaked_transfers"] == 1)
    await first
    await lab.until(decode, lambda state: state["leaked_transfers"] == 0)


async def test_before_0_33_no_push_frees_leaked_blocks(lab, body_of) -> None:
    """It comes, and decode has forgotten whose it is."""
    prefill, decode = lab.pair("WRITE", version="0.32.0")
    body = body_of("completions", "hello")
    first, second = lab.write_legs(prefill, decode, "completions", body)
    waiting = asyncio.ensure_future(second)
    await lab.until(prefill, lambda state: state["notices"] == 1)
    waiting.cancel()
    await lab.until(decode, lambda state: state["leaked_transfers"] == 1)
    await first
    await lab.until(prefill, lambda state: state["released"] == 1)
    again = lab.write_legs(prefill, decode, "completions", body)
    assert (await asyncio.gather(*again))[1].text == expected_text("completions", body)
    assert (await lab.state(decode))["leaked_transfers"] == 1


@pytest.mark.parametrize(
    ("prefill_kv", "decode_kv", "where", "error"),
    [
        ({"remote_dp_size": 1}, {}, "prefill", "push_wrong_dp_size"),
        ({"remote_dp_size": ...}, {}, "prefill", "push_wrong_dp_size"),
        ({"remote_tp_size": 4}, {}, "prefill", "push_wrong_tp_size"),
        ({"remote_handshake_port": 1}, {}, "prefill", "push_unreachable"),
        ({}, {"remote_notify_port": 70000}, "decode", "notify_unsent"),
        ({}, {"remote_tp_size": 4}, "prefill", "notify_wrong_tp_size"),
        ({}, {"is_request_leader": False}, "decode", "nobody_notifies"),
        (
            {},
            {"is_request_leader": ..., "remote_dp_rank_override": True},
            "decode",
            "nobody_notifies",
        ),
    ],
)
async def test_wrong_parameters_hang_the_decode_leg(
    lab, body_of, prefill_kv, decode_kv, where, error
) -> None:
    prefill, decode = lab.pair("WRITE", dp_size=2)
    body = body_of("completions", "hello")
    first, second = lab.write_legs(
        prefill,
        decode,
        "completions",
        body,
        decode_rank=1,
        prefill_kv=prefill_kv,
        decode_kv=decode_kv,
    )
    waiting = asyncio.ensure_future(second)
    assert (await first).status == 200
    counting = prefill if where == "prefill" else decode
    await lab.until(counting, lambda state: state["errors"] == {error: 1})
    assert (await lab.state(decode))["waiting"] == 1
    waiting.cancel()
    await lab.until(decode, lambda state: state["aborted"] == 1)


async def test_wrong_prefill_rank_hangs_and_ends_with_write_failed(lab, body_of) -> None:
    prefill, decode = lab.pair("WRITE", dp_size=2, defer_timeout_s=0.3)
    body = body_of("completions", "hello")
    legs = lab.write_legs(
        prefill, decode, "completions", body, prefill_rank=1, decode_kv={"remote_dp_rank": 0}
    )
    first, answer = await asyncio.gather(*legs)
    assert (first.status, answer.status) == (200, 500)
    assert (await lab.state(prefill))["reaped"] == 1
    state = await lab.state(decode)
    assert (state["failed_by_notify"], state["errors"]) == (1, {})


async def test_wrong_prefill_notify_port_ends_with_the_reap(lab, body_of) -> None:
    """Decode's notice reaches nobody: both wait until prefill reaps and tells decode."""
    prefill, decode = lab.pair("WRITE", defer_timeout_s=0.5)
    body = body_of("completions", "hello")
    decode_kv = {"remote_notify_port": free_port()}
    first, second = lab.write_legs(prefill, decode, "completions", body, decode_kv=decode_kv)
    waiting = asyncio.ensure_future(second)
    assert (await first).status == 200
    state = await lab.state(prefill)
    assert (state["notices"], state["held_transfers"]) == (0, 1)
    assert (await waiting).status == 500
    assert (await lab.state(prefill))["reaped"] == 1
    assert (await lab.state(decode))["failed_by_notify"] == 1


async def test_wrong_decode_notify_port_hangs_decode_for_good(lab, body_of) -> None:
    """The blocks are written, but decode never hears so: prefill is done, decode waits on."""
    prefill, decode = lab.pair("WRITE", defer_timeout_s=0.3)
    body = body_of("completions", "hello")
    prefill_kv = {"remote_notify_port": free_port()}
    first, second = lab.write_legs(prefill, decode, "completions", body, prefill_kv=prefill_kv)
    waiting = asyncio.ensure_future(second)
    assert (await first).status == 200
    await lab.until(prefill, lambda state: state["released"] == 1)
    assert (await lab.state(decode))["waiting"] == 1
    waiting.cancel()
    state = await lab.until(decode, lambda state: state["aborted"] == 1)
    assert (state["leaked_transfers"], state["failed_by_notify"]) == (1, 0)


async def test_before_0_33_nobody_tells_decode_of_the_reap(lab, body_of) -> None:
    """Decode waits on, and its listener lives: a later pair comes through the same socket."""
    prefill, decode = lab.pair("WRITE", version="0.32.0", defer_timeout_s=1.0)
    body = body_of("completions", "hello")
    first, second = lab.write_legs(
        prefill, decode, "completions", body, decode_kv={"is_request_leader": False}
    )
    waiting = asyncio.ensure_future(second)
    await first
    await lab.until(prefill, lambda state: state["reaped"] == 1)
    again = lab.write_legs(prefill, decode, "completions", body)
    assert (await asyncio.gather(*again))[1].text == expected_text("completions", body)
    state = await lab.state(decode)
    assert (state["waiting"], state["notify_threads_dead"]) == (1, 0)
    waiting.cancel()


async def test_swapped_prompts_give_another_text(lab, body_of) -> None:
    prefill, decode = lab.pair("WRITE")
    one, two = (body_of("completions", text) for text in ("prompt one", "prompt two"))
    first, unused = lab.write_legs(prefill, decode, "completions", one)
    unused.close()
    other, second = lab.write_legs(
        prefill, decode, "completions", two, decode_kv={"transfer_id": "tx-swapped"}
    )
    other.close()
    first.close()
    swapped = lab.write_legs(
        prefill, decode, "completions", one, prefill_kv={"transfer_id": "tx-swapped"}
    )
    swapped[1].close()
    _, answer = await asyncio.gather(swapped[0], second)
    assert answer.status == 200
    assert answer.text != expected_text("completions", two)
    assert answer.text != expected_text("completions", one)


@pytest.mark.parametrize("key", ["remote_engine_id", "remote_block_ids"])
async def test_missing_keys_kill_the_prefill_engine(lab, body_of, key) -> None:
    prefill, decode = lab.pair("WRITE")
    body = body_of("completions", "hello")
    first, second = lab.write_legs(prefill, decode, "completions", body, prefill_kv={key: ...})
    second.close()
    assert (await first).status == 500
    async with lab.http.get(f"{prefill.url}/health") as response:
        assert response.status == 503
    assert (await lab.ask(prefill, "completions", body)).status == 500


async def test_missing_decode_address_kills_the_prefill_engine(lab, body_of) -> None:
    prefill, decode = lab.pair("WRITE")
    body = body_of("completions", "hello")
    legs = lab.write_legs(prefill, decode, "completions", body, prefill_kv={"remote_host": ...})
    legs[1].close()
    assert (await legs[0]).status == 500
    assert (await lab.state(prefill))["cause_of_death"] == "no_peer_address"
