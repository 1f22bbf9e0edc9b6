"""NIXL: what wrong parameters, dead peers and missing keys do to a decode engine, read in vLLM."""

import asyncio
from typing import Any

import pytest

from sidecar.sim.model import expected_text
from tests.ports import free_port
from tests.sim.conftest import Engine, Lab

pytestmark = pytest.mark.asyncio


def handed_over(answer: Any) -> dict[str, Any]:
    params = answer.json["kv_transfer_params"]
    assert isinstance(params, dict)
    return params


async def health(lab: Lab, engine: Engine) -> int:
    async with lab.http.get(f"{engine.url}/health") as response:
        return response.status


async def test_refused_leg_without_keys_ends_the_engine(lab, body_of) -> None:
    decode = lab.start("decode", connector="nixl")
    body = body_of("completions", "hello", model="nobody")
    assert (await lab.decode(decode, "completions", body, do_remote_prefill=True)).status == 404
    assert await health(lab, decode) == 503
    assert (await lab.state(decode))["cause_of_death"] == "nixl_missing_keys"


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"remote_block_ids": ...}, "nixl_no_blocks"),
        ({"remote_block_ids": None}, "nixl_no_blocks"),
        ({"remote_block_ids": []}, "nixl_no_blocks"),
        ({"remote_block_ids": [[]]}, "nixl_bad_blocks"),
        ({"remote_block_ids": [1, 2, 3]}, "nixl_bad_blocks"),
    ],
)
async def test_blocks_that_decode_cannot_read_end_the_engine(
    lab, body_of, changes: dict[str, Any], cause: str
) -> None:
    prefill, decode = lab.nixl_pair()
    body = body_of("completions", "hello")
    params = {**handed_over(await lab.nixl_prefill(prefill, "completions", body)), **changes}
    assert (await lab.decode(decode, "completions", body, **params)).status == 500
    assert await health(lab, decode) == 503
    assert (await lab.ask(decode, "completions", body)).status == 500
    state = await lab.state(decode)
    assert (state["cause_of_death"], state["errors"]) == (cause, {cause: 1})


@pytest.mark.parametrize(
    "key", ["remote_engine_id", "remote_request_id", "remote_host", "remote_port"]
)
async def test_leg_without_a_key_hangs_and_leaks(lab, body_of, key) -> None:
    """vLLM warns, but has promised the tokens by then: the request waits for a read that never
    began, and its blocks are gone when its client leaves."""
    prefill, decode = lab.nixl_pair()
    body = body_of("completions", "hello", stream=True)
    params = {**handed_over(await lab.nixl_prefill(prefill, "completions", body)), key: ...}
    leg = asyncio.ensure_future(lab.decode(decode, "completions", body, **params))
    await lab.until(decode, lambda state: state["errors"] == {"nixl_missing_keys": 1})
    assert not leg.done()
    leg.cancel()
    state = await lab.until(decode, lambda state: state["leaked_transfers"] == 1)
    assert (state["leaked_blocks"] > 0, state["is_dead"]) == (True, False)


async def test_unstreamed_leg_without_a_key_ends_the_engine_when_its_client_leaves(
    lab, body_of
) -> None:
    """The handler's cleanup looks the keys up that are not there."""
    prefill, decode = lab.nixl_pair()
    body = body_of("completions", "hello")
    params = handed_over(await lab.nixl_prefill(prefill, "completions", body))
    leg = asyncio.ensure_future(
        lab.decode(decode, "completions", body, **{**params, "remote_port": ...})
    )
    await lab.until(decode, lambda state: state["errors"] == {"nixl_missing_keys": 1})
    leg.cancel()
    await lab.until(decode, lambda state: state["is_dead"])


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"remote_engine_id": "somebody-else"}, "nixl_wrong_engine_id"),
        ({"remote_engine_id": None}, "nixl_wrong_engine_id"),
        ({"remote_host": None}, "nixl_peer_unreachable"),
    ],
)
async def test_wrong_peer_fails_the_leg_and_nothing_else(
    lab, body_of, changes: dict[str, Any], kind: str
) -> None:
    prefill, decode = lab.nixl_pair()
    for stream in (False, True):
        body = body_of("completions", "hello", stream=stream)
        params = handed_over(await lab.nixl_prefill(prefill, "completions", body))
        answer = await lab.decode(decode, "completions", body, **{**params, **changes})
        assert answer.text == ""
        assert (answer.status, answer.is_done) == ((200, True) if stream else (500, False))
    assert (await lab.state(decode))["errors"] == {kind: 2}
    assert await health(lab, decode) == 200


async def test_known_engine_is_found_whatever_address_is_told(lab, body_of) -> None:
    prefill, decode = lab.nixl_pair()
    body = body_of("completions", "hello")
    for changes in ({}, {"remote_host": "203.0.113.1", "remote_port": 1}):
        params = handed_over(await lab.nixl_prefill(prefill, "completions", body))
        answer = await lab.decode(decode, "completions", body, **{**params, **changes})
        assert answer.text == expected_text("completions", body)


async def test_dead_peer_is_waited_for_as_long_as_a_handshake_may_take(lab, body_of) -> None:
    decode = lab.start("decode", connector="nixl")
    params = {
        "do_remote_prefill": True,
        "remote_engine_id": "gone",
        "remote_request_id": "cmpl-1-0-00000000",
        "remote_block_ids": [[1]],
        "remote_host": "127.0.0.1",
        "remote_port": free_port(),
    }
    started = asyncio.get_running_loop().time()
    answer = await lab.decode(decode, "completions", body_of("completions", "hi"), **params)
    assert answer.status == 500
    assert asyncio.get_running_loop().time() - started >= 5.0
    assert (await lab.state(decode))["errors"] == {"nixl_peer_unreachable": 1}


async def test_new_life_of_prefill_has_another_id_and_old_parameters_fail(lab, body_of) -> None:
    prefill, decode = lab.nixl_pair()
    body = body_of("completions", "hello")
    first = handed_over(await lab.nixl_prefill(prefill, "completions", body))
    await lab.decode(decode, "completions", body, **first)
    stale = handed_over(await lab.nixl_prefill(prefill, "completions", body))
    await lab.control(prefill, "faults", kind="die", down_s=0.05)
    await lab.until_alive(prefill)
    assert (await lab.decode(decode, "completions", body, **stale)).status == 500
    fresh = handed_over(await lab.nixl_prefill(prefill, "completions", body))
    assert fresh["remote_engine_id"] != first["remote_engine_id"]
    answer = await lab.decode(decode, "completions", body, **fresh)
    assert answer.text == expected_text("completions", body)


async def test_other_version_or_model_is_no_peer(lab, body_of) -> None:
    prefill = lab.start("prefill", connector="nixl", version="0.32.0")
    decode = lab.start("decode", connector="nixl", version="0.33.0")
    body = body_of("completions", "hello")
    params = handed_over(await lab.nixl_prefill(prefill, "completions", body))
    assert (await lab.decode(decode, "completions", body, **params)).status == 500
    assert (await lab.state(decode))["errors"] == {"nixl_incompatible": 1}


async def test_legs_of_the_other_connector_are_named(lab, body_of) -> None:
    body = body_of("completions", "hello", stream=True)
    moriio_prefill, moriio_decode = lab.pair("READ")
    nixl_prefill, nixl_decode = lab.nixl_pair()
    of_moriio = handed_over(await lab.prefill(moriio_prefill, "completions", body))
    of_nixl = handed_over(await lab.nixl_prefill(nixl_prefill, "completions", body))
    await lab.prefill(nixl_prefill, "completions", body)
    await lab.nixl_prefill(moriio_prefill, "completions", body)
    leg = asyncio.ensure_future(lab.decode(nixl_decode, "completions", body, **of_moriio))
    await lab.until(nixl_decode, lambda state: state["errors"].get("nixl_missing_keys") == 1)
    leg.cancel()
    await lab.decode(moriio_decode, "completions", body, **of_nixl)
    for engine, kind in (
        (nixl_prefill, "moriio_params"),
        (nixl_decode, "moriio_params"),
        (moriio_prefill, "nixl_params"),
        (moriio_decode, "nixl_params"),
    ):
        assert (await lab.state(engine))["errors"].get(kind) == 1, engine.options
