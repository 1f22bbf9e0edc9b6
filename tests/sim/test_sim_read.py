"""READ: the legs in series, decode fetches; every wrong parameter is seen."""

import asyncio
from typing import Any

import pytest

from sidecar.sim.model import expected_text

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize("api", ["completions", "chat"])
@pytest.mark.parametrize("stream", [False, True])
async def test_pair_answers_the_oracle_and_frees_its_blocks(lab, body_of, api, stream) -> None:
    prefill, decode = lab.pair("READ")
    body = body_of(api, "the quick brown fox " * 100, stream=stream, max_tokens=20)
    first = await lab.prefill(prefill, api, body)
    assert (await lab.state(prefill))["held_transfers"] == 1
    answer = await lab.decode(decode, api, body, **first.json["kv_transfer_params"])
    assert answer.text == expected_text(api, body, 20)
    state = await lab.state(prefill)
    assert (state["held_transfers"], state["held_blocks"], state["released"]) == (0, 0, 1)
    assert state["ranks"]["prefill"] == [1]
    assert (await lab.state(decode))["ranks"] == {"prefill": [0], "decode": [1], "plain": [0]}


async def test_prefill_answer_has_the_keys_of_the_connector(lab, body_of) -> None:
    prefill = lab.start("prefill", dp_size=2)
    first = await lab.prefill(prefill, "completions", body_of("completions", "hi"), 1)
    params = first.json["kv_transfer_params"]
    host, port = prefill.ready["http"].split(":")[0], prefill.ready["handshake_port"]
    assert isinstance(params.pop("remote_block_ids")[0], list)
    assert params.pop("transfer_id").startswith("tx-")
    assert params == {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_engine_id": f"{host}:{port}",
        "remote_host": host,
        "remote_handshake_port": port,
        "remote_notify_port": prefill.ready["notify_port"],
        "remote_dp_rank": 1,
        "remote_dp_rank_override": True,
        "remote_dp_size": 2,
        "remote_dp_size_local": 2,
        "tp_size": 1,
        "remote_prefill_cached_tokens": 0,
    }
    assert first.json["choices"][0]["finish_reason"] == "length"


async def test_ranks_each_hold_their_own_transfers(lab, body_of) -> None:
    prefill, decode = lab.pair("READ", dp_size=3)

    async def exchange(number: int) -> None:
        body = body_of("chat", f"question {number}")
        first = await lab.prefill(prefill, "chat", body, number % 3)
        answer = await lab.decode(decode, "chat", body, **first.json["kv_transfer_params"])
        assert answer.text == expected_text("chat", body)

    await asyncio.gather(*(exchange(number) for number in range(9)))
    assert (await lab.state(prefill))["ranks"]["prefill"] == [3, 3, 3]
    assert (await lab.state(decode))["ranks"]["decode"] == [3, 3, 3]


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"transfer_id": "tx-other"}, "unknown_transfer"),
        ({"transfer_id": ...}, "unknown_transfer"),
        ({"remote_dp_rank": 0}, "wrong_rank"),
        ({"remote_dp_rank": ...}, "wrong_rank"),
        ({"remote_dp_rank": 7}, "no_session_for_rank"),
        ({"remote_dp_size": ...}, "no_session_for_rank"),
        ({"remote_engine_id": "10.0.0.1:1"}, "wrong_engine_id"),
        ({"remote_engine_id": None}, "wrong_engine_id"),
        ({"remote_block_ids": [[987654]]}, "wrong_blocks"),
        ({"remote_tp_size": 8}, "wrong_tp_size"),
        ({"remote_handshake_port": 1}, "peer_unreachable"),
    ],
)
async def test_wrong_parameters_fail_the_decode_leg(
    lab, body_of, changes: dict[str, Any], error: str
) -> None:
    prefill, decode = lab.pair("READ", dp_size=2)
    for stream in (False, True):
        body = body_of("completions", "a prompt", stream=stream)
        first = await lab.prefill(prefill, "completions", body, 1)
        params = {**first.json["kv_transfer_params"], **changes}
        answer = await lab.decode(decode, "completions", body, **params)
        assert answer.text == ""
        if stream:
            # vLLM has sent its headers already: the error comes as an event.
            assert (answer.status, answer.is_done) == (200, True)
            assert answer.events[0]["error"]["code"] == 500
        else:
            assert answer.status == 500
            assert answer.json["error"]["type"] == "InternalServerError"
    assert (await lab.state(decode))["errors"] == {error: 2}
    assert (await lab.state(prefill))["held_transfers"] == 2


async def test_blocks_of_another_prompt_give_another_text(lab, body_of) -> None:
    prefill, decode = lab.pair("READ")
    bodies = [body_of("completions", text) for text in ("prompt one", "prompt two")]
    firsts = [await lab.prefill(prefill, "completions", body) for body in bodies]
    for body, other in zip(bodies, reversed(firsts), strict=True):
        params = other.json["kv_transfer_params"]
        answer = await lab.decode(decode, "completions", body, **params)
        assert answer.status == 200
        assert answer.text != expected_text("completions", body)


async def test_empty_block_ids_are_a_visible_local_prefill(lab, body_of) -> None:
    decode = lab.start("decode")
    body = body_of("completions", "hello")
    answer = await lab.decode(decode, "completions", body, do_remote_prefill=True)
    assert answer.text == expected_text("completions", body)
    assert (await lab.state(decode))["local_prefills"] == 1


async def test_decode_leg_without_an_address_kills_the_engine(lab, body_of) -> None:
    prefill, decode = lab.pair("READ")
    body = body_of("completions", "hello")
    first = await lab.prefill(prefill, "completions", body)
    params = {**first.json["kv_transfer_params"], "remote_host": ...}
    assert (await lab.decode(decode, "completions", body, **params)).status == 500
    async with lab.http.get(f"{decode.url}/health") as response:
        assert response.status == 503
    assert (await lab.state(decode))["cause_of_death"] == "no_peer_address"


async def test_nobody_comes_and_the_blocks_are_reaped(lab, body_of) -> None:
    prefill, decode = lab.pair("READ", defer_timeout_s=0.2)
    body = body_of("completions", "hello")
    first = await lab.prefill(prefill, "completions", body)
    state = await lab.until(prefill, lambda state: state["reaped"] == 1)
    assert state["held_blocks"] == 0
    late = await lab.decode(decode, "completions", body, **first.json["kv_transfer_params"])
    assert late.status == 500


async def test_transfer_id_used_twice_holds_nothing(lab, body_of) -> None:
    prefill = lab.start("prefill")
    body = body_of("completions", "hello")
    for _ in range(2):
        again = await lab.prefill(prefill, "completions", body, transfer_id="tx-same")
        assert again.status == 200
    state = await lab.state(prefill)
    assert (state["held_transfers"], state["errors"]) == (1, {"transfer_id_reuse": 1})


@pytest.mark.parametrize("key", ["remote_engine_id", "remote_block_ids"])
async def test_read_prefill_does_not_miss_the_keys_that_write_needs(lab, body_of, key) -> None:
    """Without them the leg is served; only in WRITE vLLM's scheduler looks them up."""
    prefill = lab.start("prefill")
    leg = await lab.prefill(prefill, "completions", body_of("completions", "x"), **{key: ...})
    assert leg.status == 200
    assert not (await lab.state(prefill))["is_dead"]


async def test_missing_transfer_id_answers_but_pairs_nothing(lab, body_of) -> None:
    prefill, decode = lab.pair("READ")
    body = body_of("completions", "hello")
    first = await lab.prefill(prefill, "completions", body, transfer_id=...)
    assert first.status == 200
    params = first.json["kv_transfer_params"]
    assert (await lab.decode(decode, "completions", body, **params)).status == 500


async def test_hold_keeps_prefill_legs_until_it_is_lifted(lab, body_of) -> None:
    prefill = lab.start("prefill")
    await lab.control(prefill, "hold", hold=True)
    body = body_of("completions", "hello")
    legs = asyncio.gather(*(lab.prefill(prefill, "completions", body) for _ in range(5)))
    await lab.until(prefill, lambda state: state["holding_now"] == 5)
    assert not legs.done()
    await lab.control(prefill, "hold", hold=False)
    assert [leg.status for leg in await legs] == [200] * 5
    state = await lab.state(prefill)
    assert (state["holding_now"], state["holding_most"]) == (0, 5)


async def test_hold_has_a_limit(lab, body_of) -> None:
    prefill = lab.start("prefill")
    await lab.control(prefill, "hold", hold=True, limit_s=0.1)
    leg = await lab.prefill(prefill, "completions", body_of("completions", "hello"))
    assert leg.status == 200


async def test_client_that_leaves_a_prefill_leg_frees_its_blocks(lab, body_of) -> None:
    prefill = lab.start("prefill")
    await lab.control(prefill, "hold", hold=True)
    body = body_of("completions", "hello")
    leg = asyncio.ensure_future(lab.prefill(prefill, "completions", body))
    await lab.until(prefill, lambda state: state["holding_now"] == 1)
    leg.cancel()
    state = await lab.until(prefill, lambda state: state["aborted"] == 1)
    assert (state["holding_now"], state["held_blocks"], state["running"]) == (0, 0, 0)


async def test_embedded_address_is_required_between_0_20_and_0_31(lab, body_of) -> None:
    prefill, decode = lab.pair("READ", version="0.25.1")
    pair = f"___prefill_addr_{prefill.zmq_address}___decode_addr_{decode.zmq_address}_{'0a' * 16}"
    body = body_of("completions", "hello")
    first = await lab.prefill(prefill, "completions", body, request_id=pair)
    params = {**first.json["kv_transfer_params"], "request_id": pair}
    answer = await lab.decode(decode, "completions", body, **params)
    assert answer.text == expected_text("completions", body)
    assert answer.json["id"] == f"cmpl-{pair}"
    assert (await lab.decode(decode, "completions", body, **{**params, "request_id": "ab"})).status
    assert (await lab.state(decode))["is_dead"]


async def test_embedded_address_wins_over_explicit_keys(lab, body_of) -> None:
    prefill, decode = lab.pair("READ")
    pair = f"___prefill_addr_{prefill.zmq_address}___decode_addr_{decode.zmq_address}_{'0a' * 16}"
    body = body_of("completions", "hello")
    first = await lab.prefill(prefill, "completions", body)
    wrong = {"remote_handshake_port": 1, "request_id": pair}
    params = {**first.json["kv_transfer_params"], **wrong}
    answer = await lab.decode(decode, "completions", body, **params)
    assert answer.text == expected_text("completions", body)
