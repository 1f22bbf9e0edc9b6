"""NIXL's pull connector: the legs in series, decode reads by what prefill answered."""

import asyncio
from typing import Any

import pytest

from sidecar.sim.fleet import engine_command
from sidecar.sim.model import expected_text
from sidecar.sim.options import OptionError, SimOptions

pytestmark = pytest.mark.asyncio


def handed_over(answer: Any) -> dict[str, Any]:
    params = answer.json["kv_transfer_params"]
    assert isinstance(params, dict)
    return params


@pytest.mark.parametrize("api", ["completions", "chat", "responses", "messages"])
@pytest.mark.parametrize("stream", [False, True])
async def test_pair_answers_the_oracle_and_frees_its_blocks(lab, body_of, api, stream) -> None:
    prefill, decode = lab.nixl_pair()
    # Responses and messages are answered as chats are, in another form.
    name = "completions" if api == "completions" else "chat"
    body = body_of(name, "the quick brown fox " * 100, stream=stream, max_tokens=20)
    sent = body
    if api == "responses":
        sent = {"model": "sim-model", "input": body["messages"], "max_output_tokens": 20}
        sent["stream"] = stream
    first = await lab.nixl_prefill(prefill, api, sent)
    assert (await lab.state(prefill))["held_transfers"] == 1
    path = {"responses": "/v1/responses", "messages": "/v1/messages"}.get(api)
    params = handed_over(first)
    if path is None:
        answer = await lab.decode(decode, api, sent, **params)
        assert answer.text == expected_text(api, body, 20)
    else:
        reply = await lab.post(decode, path, {**sent, "kv_transfer_params": params})
        assert expected_text("chat", body, 20).split()[-1] in str(reply)
    state = await lab.state(prefill)
    assert (state["held_transfers"], state["held_blocks"], state["released"]) == (0, 0, 1)
    assert (state["errors"], (await lab.state(decode))["errors"]) == ({}, {})


@pytest.mark.parametrize("version", ["0.32.0", "0.33.0"])
async def test_prefill_answer_has_the_keys_of_the_version(lab, body_of, version) -> None:
    prefill = lab.start("prefill", connector="nixl", version=version, dp_size=2, tp_size=4)
    first = await lab.nixl_prefill(prefill, "completions", body_of("completions", "hi"), 1)
    params = dict(handed_over(first))
    host = prefill.ready["http"].split(":")[0]
    ids = params.pop("remote_block_ids")
    assert isinstance(ids, list)
    assert all(isinstance(one, int) for one in ids[0])
    assert params.pop("remote_engine_id").endswith("_dp1")
    assert params.pop("remote_request_id").startswith("cmpl-")
    generation = {} if version == "0.32.0" else {"remote_registration_generation": 4}
    assert params == {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_host": host,
        "remote_port": prefill.ready["handshake_port"] + 1,
        "tp_size": 4,
        "dcp_size": 1,
        "pp_size": 1,
        "remote_num_tokens": first.json["usage"]["prompt_tokens"],
        "remote_blocks_expiry_time": None,
        "transfer_mode": "pull",
        "remote_prefill_cached_tokens": 0,
        **generation,
    }


async def test_kv_is_handed_over_on_stop_too(lab, body_of) -> None:
    """vLLM's NIXL connector takes what ended by a token for finished, MoRI-IO's does not."""
    prefill, decode = lab.nixl_pair()
    body = body_of("completions", "stops at once <eos:1>")
    first = await lab.nixl_prefill(prefill, "completions", body)
    assert first.json["choices"][0]["finish_reason"] == "stop"
    answer = await lab.decode(decode, "completions", body, **handed_over(first))
    assert (answer.status, (await lab.state(prefill))["held_transfers"]) == (200, 0)


async def test_stop_string_before_the_last_token_hands_nothing_over(lab, body_of) -> None:
    """It is found outside of the engine, which is told to abort; at the last token too late."""
    prefill = lab.start("prefill", connector="nixl")
    body = body_of("completions", "hello")
    stop = expected_text("completions", body, 1)
    held = []
    for max_tokens in (2, 1):
        leg = {**body, "stop": stop, "max_tokens": max_tokens}
        leg["kv_transfer_params"] = {"do_remote_decode": True}
        answer = await lab.ask(prefill, "completions", leg)
        assert answer.json["choices"][0]["finish_reason"] == "stop"
        held.append((await lab.state(prefill))["held_transfers"])
    assert held == [0, 1]
    assert (await lab.state(prefill))["errors"] == {"prefill_max_tokens": 1}


async def test_fault_keeps_the_kv_from_being_handed_over(lab, body_of) -> None:
    prefill = lab.start("prefill", connector="nixl")
    await lab.control(prefill, "faults", leg="prefill", kind="no_kv")
    first = await lab.nixl_prefill(prefill, "completions", body_of("completions", "hello"))
    assert first.json["kv_transfer_params"] is None
    assert (await lab.state(prefill))["held_transfers"] == 0


async def test_decode_leg_that_a_fault_refuses_frees_prefills_blocks(lab, body_of) -> None:
    prefill, decode = lab.nixl_pair()
    await lab.control(decode, "faults", leg="decode", kind="status", status=503)
    body = body_of("completions", "hello", stream=True)
    params = handed_over(await lab.nixl_prefill(prefill, "completions", body))
    assert (await lab.decode(decode, "completions", body, **params)).status == 503
    await lab.until(prefill, lambda state: state["released_by_notify"] == 1)


async def test_transfer_id_changes_nothing(lab, body_of) -> None:
    prefill, decode = lab.nixl_pair()
    body = body_of("completions", "hello")
    first = await lab.nixl_prefill(prefill, "completions", body, transfer_id="tx-1")
    params = handed_over(first)
    assert "transfer_id" not in params
    answer = await lab.decode(decode, "completions", body, **params, transfer_id="tx-other")
    assert answer.text == expected_text("completions", body)
    assert (await lab.state(prefill))["errors"] == {}


async def test_each_rank_is_an_engine_of_its_own(lab, body_of) -> None:
    prefill, decode = lab.nixl_pair(dp_size=3)

    async def exchange(number: int) -> str:
        body = body_of("chat", f"question {number}")
        first = await lab.nixl_prefill(prefill, "chat", body, number % 3)
        answer = await lab.decode(decode, "chat", body, 0, **handed_over(first))
        assert answer.text == expected_text("chat", body)
        return str(handed_over(first)["remote_engine_id"])

    engine_ids = await asyncio.gather(*(exchange(number) for number in range(9)))
    assert len(set(engine_ids)) == 3
    state = await lab.state(prefill)
    assert (state["ranks"]["prefill"], state["held_blocks"]) == ([3, 3, 3], 0)


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_plain_request_is_served_right_by_both_roles(lab, body_of, role) -> None:
    engine = lab.start(role, connector="nixl", version="0.32.0")
    body = body_of("chat", "hello")
    assert (await lab.ask(engine, "chat", body)).text == expected_text("chat", body)
    assert (await lab.state(engine))["errors"] == {}


async def test_leg_at_the_other_role_is_served_and_counted(lab, body_of) -> None:
    """Nothing in vLLM's connector looks at the role."""
    prefill, decode = lab.nixl_pair()
    body = body_of("completions", "hello")
    first = await lab.nixl_prefill(decode, "completions", body)
    answer = await lab.decode(prefill, "completions", body, **handed_over(first))
    assert answer.text == expected_text("completions", body)
    for engine in (prefill, decode):
        assert (await lab.state(engine))["errors"] == {"wrong_role": 1}


async def test_blocks_of_another_prompt_give_another_text(lab, body_of) -> None:
    prefill, decode = lab.nixl_pair()
    bodies = [body_of("completions", text) for text in ("prompt one", "prompt two")]
    firsts = [await lab.nixl_prefill(prefill, "completions", body) for body in bodies]
    for body, other in zip(bodies, reversed(firsts), strict=True):
        answer = await lab.decode(decode, "completions", body, **handed_over(other))
        assert answer.status == 200
        assert answer.text != expected_text("completions", body)


async def test_read_of_blocks_that_are_not_the_requests_own_is_seen(lab, body_of) -> None:
    """Nothing checks a remote read: it frees the request that it names, and text is wrong."""
    prefill, decode = lab.nixl_pair()
    body = body_of("completions", "hello")
    params = handed_over(await lab.nixl_prefill(prefill, "completions", body))
    answer = await lab.decode(
        decode, "completions", body, **{**params, "remote_block_ids": [[987654]]}
    )
    assert answer.status == 200
    assert answer.text != expected_text("completions", body)
    state = await lab.state(prefill)
    assert (state["errors"], state["held_transfers"]) == ({"nixl_wrong_blocks": 1}, 0)


async def test_read_under_another_request_id_leaves_the_blocks(lab, body_of) -> None:
    prefill, decode = lab.nixl_pair()
    body = body_of("completions", "hello")
    params = handed_over(await lab.nixl_prefill(prefill, "completions", body))
    answer = await lab.decode(
        decode, "completions", body, **{**params, "remote_request_id": "cmpl-other-0-00000000"}
    )
    assert answer.text == expected_text("completions", body)
    state = await lab.state(prefill)
    assert (state["errors"], state["held_transfers"]) == ({"nixl_unknown_request": 1}, 1)


async def test_expired_lease_is_read_as_garbage(lab, body_of) -> None:
    """vLLM's decode does not notice; prefill logs that the blocks may have been invalid."""
    prefill, decode = lab.nixl_pair(kv_lease_s=0.2)
    body = body_of("completions", "hello")
    params = handed_over(await lab.nixl_prefill(prefill, "completions", body))
    state = await lab.until(prefill, lambda state: state["reaped"] == 1)
    assert (state["held_blocks"], state["reaped_blocks"] > 0) == (0, True)
    answer = await lab.decode(decode, "completions", body, **params)
    assert answer.status == 200
    assert answer.text != expected_text("completions", body)
    assert (await lab.state(prefill))["errors"] == {"nixl_lease_expired": 1}


async def test_decode_leg_that_waits_renews_the_lease(lab, body_of) -> None:
    prefill, decode = lab.nixl_pair(kv_lease_s=0.6)
    await lab.control(decode, "hold", hold=True)
    body = body_of("completions", "hello")
    params = handed_over(await lab.nixl_prefill(prefill, "completions", body))
    leg = asyncio.ensure_future(lab.decode(decode, "completions", body, **params))
    # More of them than one lease has.
    await lab.until(prefill, lambda state: state["renewals"] >= 12)
    await lab.control(decode, "hold", hold=False)
    assert (await leg).text == expected_text("completions", body)
    assert (await lab.state(prefill))["reaped"] == 0


async def test_client_that_leaves_a_waiting_decode_leg_frees_prefills_blocks(lab, body_of) -> None:
    prefill, decode = lab.nixl_pair()
    await lab.control(decode, "hold", hold=True)
    for stream in (False, True):
        body = body_of("completions", "hello", stream=stream)
        params = handed_over(await lab.nixl_prefill(prefill, "completions", body))
        leg = asyncio.ensure_future(lab.decode(decode, "completions", body, **params))
        await lab.until(decode, lambda state: state["holding_now"] == 1)
        leg.cancel()
        await lab.until(prefill, lambda state: state["held_transfers"] == 0)
        await lab.until(decode, lambda state: state["holding_now"] == 0)
    assert (await lab.state(prefill))["released_by_notify"] == 2


@pytest.mark.parametrize(
    ("change", "status"), [({"model": "nobody"}, 404), ({"max_tokens": -1}, 400)]
)
async def test_decode_that_refuses_a_leg_frees_prefills_blocks(
    lab, body_of, change, status
) -> None:
    prefill, decode = lab.nixl_pair()
    body = body_of("completions", "hello")
    params = handed_over(await lab.nixl_prefill(prefill, "completions", body))
    answer = await lab.decode(decode, "completions", {**body, **change}, **params)
    assert answer.status == status
    state = await lab.until(prefill, lambda state: state["held_transfers"] == 0)
    assert (state["released_by_notify"], state["errors"]) == (1, {})


async def test_leg_that_the_request_models_refuse_leaves_the_blocks_to_their_lease(
    lab, body_of
) -> None:
    """No handler of vLLM has run by then, so nobody tells prefill."""
    prefill, decode = lab.nixl_pair(kv_lease_s=0.5)
    body = body_of("completions", "hello")
    params = handed_over(await lab.nixl_prefill(prefill, "completions", body))
    assert (await lab.decode(decode, "completions", {**body, "n": "x"}, **params)).status == 400
    state = await lab.until(prefill, lambda state: state["held_transfers"] == 0)
    assert (state["reaped"], state["released"]) == (1, 0)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"proxy": "127.0.0.1:1"}, "registers nowhere"),
        ({"mode": "WRITE"}, "pull connector"),
        ({"version": "0.31.0"}, "from 0.32 on"),
        ({"kv_lease_s": 0}, "--kv-lease-s"),
    ],
)
async def test_option_that_nixl_has_not_is_a_usage_error(options, complaint) -> None:
    with pytest.raises(OptionError, match=complaint):
        SimOptions(role="prefill", connector="nixl", **options)


async def test_command_line_says_why_a_nixl_engine_does_not_register() -> None:
    command = engine_command(SimOptions(role="prefill", connector="nixl"))
    command = [one for one in command if not one.startswith("--proxy")] + ["--proxy=127.0.0.1:1"]
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    _, complaint = await process.communicate()
    assert process.returncode == 2
    assert b"registers nowhere" in complaint
    assert complaint.count(b"\n") == 1
