"""Faults on demand: each hits as many requests of its leg as asked, then all is well again."""

import asyncio

import aiohttp
import pytest

from sidecar.sim.model import expected_text

pytestmark = pytest.mark.asyncio


async def test_status_hits_its_leg_and_count_alone(lab, body_of) -> None:
    prefill = lab.start("prefill")
    body = body_of("completions", "hello")
    await lab.control(prefill, "fail", leg="prefill", kind="status", status=503, count=2)
    assert (await lab.ask(prefill, "completions", body)).status == 200
    legs = [await lab.prefill(prefill, "completions", body) for _ in range(3)]
    assert [leg.status for leg in legs] == [503, 503, 200]


async def test_reset_drops_the_connection(lab, body_of) -> None:
    prefill = lab.start("prefill")
    body = body_of("completions", "hello")
    await lab.control(prefill, "fail", leg="plain", kind="reset")
    with pytest.raises(aiohttp.ClientError):
        await lab.ask(prefill, "completions", body)
    assert (await lab.ask(prefill, "completions", body)).status == 200


async def test_cut_ends_a_stream_without_its_end(lab, body_of) -> None:
    engine = lab.start("prefill", tokens_per_s=100)
    body = body_of("completions", "hello", stream=True)
    await lab.control(engine, "fail", leg="plain", kind="cut", after_tokens=3)
    url = f"{engine.url}/v1/completions"
    got: list[bytes] = []

    async def read(response: aiohttp.ClientResponse) -> None:
        async for piece in response.content.iter_any():
            got.append(piece)

    async with lab.http.post(url, json=body) as response:
        with pytest.raises(aiohttp.ClientPayloadError):
            await read(response)
    assert b"".join(got).count(b'"text"') == 3


async def test_stall_stops_until_the_client_leaves(lab, body_of) -> None:
    engine = lab.start("prefill")
    for stream in (True, False):
        await lab.control(engine, "reset")
        await lab.control(engine, "fail", leg="plain", kind="stall", after_tokens=2)
        body = body_of("completions", "hello", stream=stream)
        asking = asyncio.ensure_future(lab.ask(engine, "completions", body))
        await lab.until(engine, lambda state: state["running"] == 1)
        asking.cancel()
        await lab.until(engine, lambda state: state["aborted"] == 1)


async def test_prefill_without_kv_hands_nothing_over(lab, body_of) -> None:
    prefill = lab.start("prefill")
    body = body_of("completions", "hello")
    await lab.control(prefill, "fail", leg="prefill", kind="no_kv")
    leg = await lab.prefill(prefill, "completions", body)
    assert leg.json["kv_transfer_params"] is None
    assert leg.json["choices"][0]["finish_reason"] == "stop"
    assert (await lab.state(prefill))["held_transfers"] == 0


async def test_leg_that_may_stop_early_is_counted(lab, body_of) -> None:
    prefill = lab.start("prefill")
    body = body_of("completions", "hello", max_tokens=1)
    kv = {"do_remote_decode": True, "transfer_id": "tx-1"}
    await lab.ask(prefill, "completions", {**body, "kv_transfer_params": kv})
    assert (await lab.state(prefill))["errors"] == {"prefill_may_stop_early": 1}


async def test_pace_may_change_while_tokens_flow(lab, body_of) -> None:
    engine = lab.start("prefill", tokens_per_s=2)
    body = body_of("completions", "hello", stream=True, max_tokens=400)
    asking = asyncio.ensure_future(lab.ask(engine, "completions", body))
    await lab.until(engine, lambda state: state["tokens_sent"] >= 1)
    await lab.control(engine, "pace", tokens_per_s=0)
    assert (await asking).text == expected_text("completions", body)


@pytest.mark.parametrize(
    "given",
    [{}, {"leg": "plain", "kind": "fire"}, {"leg": "both", "kind": "cut"}, {"kind": "cut"}],
)
async def test_unknown_faults_are_refused(lab, given) -> None:
    engine = lab.start("prefill")
    async with lab.http.post(f"{engine.url}/sim/fail", json=given) as response:
        assert response.status == 400
