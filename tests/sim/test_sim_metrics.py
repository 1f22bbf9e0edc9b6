"""GET /metrics of an engine: vLLM's families, and when each counts."""

import asyncio
import re

import pytest

from tests.sim.conftest import Engine, Lab

pytestmark = pytest.mark.asyncio
_SAMPLE = re.compile(
    r'^vllm:(\w+)\{engine="(\d+)",model_name="sim-model"(?:,source="(\w+)")?\} (.+)$'
)


async def scrape(lab: Lab, engine: Engine, rank: int = 0) -> dict[str, float]:
    """The samples of one rank, by name, with `:source` where there is one."""
    async with lab.http.get(f"{engine.url}/metrics") as response:
        assert response.status == 200
        assert response.content_type == "text/plain"
        lines = (await response.text()).splitlines()
    found = [_SAMPLE.match(line) for line in lines if not line.startswith("#")]
    assert all(found), lines
    return {
        one[1] + (f":{one[3]}" if one[3] else ""): float(one[4])
        for one in found
        if one is not None and int(one[2]) == rank
    }


IDLE = {
    "num_requests_running": 0,
    "num_requests_waiting": 0,
    "kv_cache_usage_perc": 0,
    "external_prefix_cache_queries_total": 0,
    "external_prefix_cache_hits_total": 0,
    "prompt_tokens_total": 0,
    "prompt_tokens_by_source_total:local_compute": 0,
    "prompt_tokens_by_source_total:local_cache_hit": 0,
    "prompt_tokens_by_source_total:external_kv_transfer": 0,
    "prompt_tokens_cached_total": 0,
    "generation_tokens_total": 0,
}


def counted(computed: int, external: int, generated: int) -> dict[str, float]:
    return {
        **IDLE,
        "external_prefix_cache_queries_total": computed + external,
        "external_prefix_cache_hits_total": external,
        "prompt_tokens_total": computed + external,
        "prompt_tokens_by_source_total:local_compute": computed,
        "prompt_tokens_by_source_total:external_kv_transfer": external,
        "prompt_tokens_cached_total": external,
        "generation_tokens_total": generated,
    }


async def test_engine_that_did_nothing_shows_every_rank_at_zero(lab) -> None:
    engine = lab.start("prefill", dp_size=2)
    assert [await scrape(lab, engine, rank) for rank in (0, 1, 2)] == [IDLE, IDLE, {}]


async def test_nixl_decode_counts_the_whole_prompt_as_fetched(lab, body_of) -> None:
    prefill, decode = lab.nixl_pair()
    body = body_of("completions", "hello " * 50, max_tokens=7)
    first = await lab.nixl_prefill(prefill, "completions", body)
    tokens = first.json["usage"]["prompt_tokens"]
    held = await scrape(lab, prefill)
    assert held.pop("kv_cache_usage_perc") > 0
    assert held == {k: v for k, v in counted(tokens, 0, 1).items() if k in held}
    await lab.decode(decode, "completions", body, **first.json["kv_transfer_params"])
    assert await scrape(lab, decode) == counted(0, tokens, 7)
    assert await scrape(lab, prefill) == counted(tokens, 0, 1)


async def test_moriio_read_decode_computes_the_last_token_itself(lab, body_of) -> None:
    prefill, decode = lab.pair("READ")
    body = body_of("completions", "hello", max_tokens=3)
    first = await lab.prefill(prefill, "completions", body)
    tokens = first.json["usage"]["prompt_tokens"]
    await lab.decode(decode, "completions", body, **first.json["kv_transfer_params"])
    assert await scrape(lab, decode) == counted(1, tokens - 1, 3)


async def test_moriio_write_decode_counts_the_whole_prompt_as_fetched(lab, body_of) -> None:
    prefill, decode = lab.pair("WRITE")
    body = body_of("completions", "hello", max_tokens=3)
    first, second = await asyncio.gather(*lab.write_legs(prefill, decode, "completions", body))
    tokens = second.json["usage"]["prompt_tokens"]
    assert await scrape(lab, decode) == counted(0, tokens, 3)
    assert first.status == 200


@pytest.mark.parametrize(
    ("version", "external"), [("0.33.0", 0), ("0.31.0", None)], ids=["0.33", "before 0.33"]
)
async def test_moriio_read_decode_claims_plain_prompts_before_0_33(
    lab, body_of, version, external
) -> None:
    """That claim is why their answers are garbage."""
    decode = lab.start("decode", version=version)
    answer = await lab.ask(decode, "completions", body_of("completions", "hello", max_tokens=2))
    tokens = answer.json["usage"]["prompt_tokens"]
    claimed = tokens - 1 if external is None else external
    assert await scrape(lab, decode) == counted(tokens - claimed, claimed, 2)


async def test_requests_run_or_wait_and_hold_blocks_meanwhile(lab, body_of) -> None:
    prefill, decode = lab.nixl_pair()
    await lab.control(decode, "hold", hold=True)
    body = body_of("completions", "hello")
    first = await lab.nixl_prefill(prefill, "completions", body)
    params = first.json["kv_transfer_params"]
    waiting = asyncio.ensure_future(lab.decode(decode, "completions", body, **params))
    await lab.until(decode, lambda state: state["holding_now"] == 1)
    seen = await scrape(lab, decode)
    assert (seen["num_requests_running"], seen["num_requests_waiting"]) == (0, 1)
    assert seen["kv_cache_usage_perc"] > 0
    # What is not scheduled yet has asked for nothing.
    assert seen["external_prefix_cache_queries_total"] == 0
    await lab.control(decode, "pace", ttft_ms=60_000)
    await lab.control(decode, "hold", hold=False)
    await lab.until(decode, lambda state: state["waiting"] == 0)
    seen = await scrape(lab, decode)
    assert (seen["num_requests_running"], seen["num_requests_waiting"]) == (1, 0)
    # Promised, and no first token yet.
    assert seen["external_prefix_cache_hits_total"] > 0
    assert seen["prompt_tokens_total"] == 0
    waiting.cancel()
    await lab.until(decode, lambda state: state["running"] == 0)
    left = await scrape(lab, decode)
    assert (left["num_requests_running"], left["kv_cache_usage_perc"]) == (0, 0)


async def test_leaked_blocks_stay_in_use(lab, body_of) -> None:
    decode = lab.start("decode", connector="nixl")
    body = body_of("completions", "hello", stream=True)
    kv = {"do_remote_prefill": True, "remote_block_ids": [[1]]}
    leg = asyncio.ensure_future(lab.decode(decode, "completions", body, **kv))
    await lab.until(decode, lambda state: state["errors"] == {"nixl_missing_keys": 1})
    leg.cancel()
    await lab.until(decode, lambda state: state["leaked_transfers"] == 1)
    await lab.until(decode, lambda state: state["running"] == 0)
    assert (await scrape(lab, decode))["kv_cache_usage_perc"] > 0


async def test_counts_outlive_a_reset_of_the_simulators_own(lab, body_of) -> None:
    """A counter that falls would be a restart to Prometheus."""
    engine = lab.start("prefill")
    await lab.ask(engine, "completions", body_of("completions", "hello", max_tokens=2))
    before = await scrape(lab, engine)
    await lab.control(engine, "reset")
    assert await scrape(lab, engine) == before
    assert (await lab.state(engine))["requests_received"] == 0


async def test_metrics_are_open_and_answer_after_death(lab, body_of) -> None:
    engine = lab.start("decode", connector="nixl", api_key="secret")
    body = body_of("completions", "hello")
    leg = {**body, "kv_transfer_params": {"do_remote_prefill": True}}
    answer = await lab.post(engine, "/v1/completions", leg, Authorization="Bearer secret")
    assert answer.status == 500
    assert (await lab.state(engine))["is_dead"]
    assert (await scrape(lab, engine))["prompt_tokens_total"] == 0
