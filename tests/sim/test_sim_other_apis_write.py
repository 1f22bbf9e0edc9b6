"""Responses and Messages as legs of a WRITE transfer, and of older engines."""

import asyncio

import pytest

from sidecar.sim.model import expected_text

pytestmark = pytest.mark.asyncio


def body_of(api: str, text: str) -> dict:
    if api == "responses":
        return {"input": text, "max_output_tokens": 6}
    messages = [{"role": "user", "content": text}]
    return {"model": "sim-model", "messages": messages, "max_tokens": 6}


@pytest.mark.parametrize("api", ["responses", "messages"])
async def test_both_legs_of_a_push(lab, api) -> None:
    prefill, decode = lab.pair("WRITE")
    legs = lab.write_legs(prefill, decode, api, body_of(api, "hello"))
    first, second = await asyncio.gather(*legs)
    assert (first.status, second.status) == (200, 200)
    chat = {"messages": [{"role": "user", "content": "hello"}]}
    assert second.text == expected_text("chat", chat, 6)
    for engine in (prefill, decode):
        state = await lab.until(engine, lambda state: not state["held_blocks"])
        assert state["errors"] == {}


@pytest.mark.parametrize("api", ["responses", "messages"])
async def test_a_leg_that_ends_at_once_has_no_parameters_and_pushes_all_the_same(lab, api) -> None:
    """As with the fault `eos`: the pushes are queued by then."""
    prefill, decode = lab.pair("WRITE")
    legs = lab.write_legs(prefill, decode, api, body_of(api, "<eos:1>"))
    first, second = await asyncio.gather(*legs)
    assert first.json.get("kv_transfer_params") is None
    assert (second.status, second.text) == (200, "")


@pytest.mark.parametrize(("api", "status"), [("messages", 200), ("responses", 500)])
async def test_an_embedded_address_reaches_all_apis_but_responses(lab, api, status) -> None:
    """That one ignores the header that carries it, so an engine up to 0.31 dies (protocol b)."""
    prefill = lab.start("prefill", mode="WRITE", version="0.31.0")
    decode = lab.start("decode", mode="WRITE", version="0.31.0")
    request_id = (
        f"___prefill_addr_{prefill.zmq_address}___decode_addr_{decode.zmq_address}_" + "a" * 32
    )
    answer = await lab.prefill(prefill, api, body_of(api, "hello"), request_id=request_id)
    assert answer.status == status
    cause = (await lab.state(prefill))["cause_of_death"]
    assert cause == (None if status == 200 else "no_peer_address")
