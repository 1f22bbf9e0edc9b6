"""Faults on demand: each hits as many requests of its leg as asked, then all is well again."""

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from sidecar.sim.model import expected_text

pytestmark = pytest.mark.asyncio


async def _raw(engine: Any, body: dict[str, Any]) -> tuple[bytes, Exception | None]:
    """What one request on its own connection gets, and how the connection ends: None is a FIN."""
    host, port = engine.ready["http"].split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    payload = json.dumps(body).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    writer.write(head.encode() + f"Content-Length: {len(payload)}\r\n\r\n".encode() + payload)
    got = b""
    try:
        while piece := await asyncio.wait_for(reader.read(65536), 10):
            got += piece
    except ConnectionError as error:
        return got, error
    finally:
        writer.close()
    return got, None


async def test_status_hits_its_leg_and_count_alone(lab, body_of) -> None:
    """Two prefill legs fail as asked; a plain request before and a leg after them do not."""
    prefill = lab.start("prefill")
    body = body_of("completions", "hello")
    await lab.control(prefill, "faults", leg="prefill", kind="status", status=503, count=2)
    assert (await lab.ask(prefill, "completions", body)).status == 200
    legs = [await lab.prefill(prefill, "completions", body) for _ in range(3)]
    assert [leg.status for leg in legs] == [503, 503, 200]
    assert (await lab.state(prefill))["held_transfers"] == 1


@pytest.mark.parametrize(
    ("given", "content_type", "body"),
    [
        ({"body": {"error": {"message": "no"}}}, "application/json", {"error": {"message": "no"}}),
        ({"body": "no\n"}, "text/plain", "no\n"),
        ({"body": "<p>", "headers": {"content-type": "text/html"}}, "text/html", "<p>"),
    ],
)
async def test_status_answers_the_body_and_headers_asked_for(
    lab, body_of, given, content_type, body
) -> None:
    """An object goes out as JSON, a text as it is, with the headers beside it."""
    engine = lab.start("prefill")
    headers = {"retry-after": "7", **given.pop("headers", {})}
    await lab.control(
        engine, "faults", leg="plain", kind="status", status=429, headers=headers, **given
    )
    url = f"{engine.url}/v1/completions"
    async with lab.http.post(url, json=body_of("completions", "hello")) as response:
        assert (response.status, response.content_type) == (429, content_type)
        assert response.headers["retry-after"] == "7"
        answered = await response.text()
    assert (json.loads(answered) if isinstance(body, dict) else answered) == body


@pytest.mark.parametrize(
    ("status", "kind", "word"),
    [
        (400, "BadRequestError", "sim"),
        (429, "Too Many Requests", "sim"),
        (500, "InternalServerError", "sim"),
        (503, "ServiceUnavailableError", "Generation is paused. Please retry after it resumes."),
    ],
)
async def test_status_without_a_body_is_worded_as_vllm_does(
    lab, body_of, status, kind, word
) -> None:
    """The error has vLLM's four keys; 503 is a paused engine."""
    engine = lab.start("prefill")
    await lab.control(engine, "faults", leg="plain", kind="status", status=status)
    answer = await lab.ask(engine, "completions", body_of("completions", "hello"))
    error = answer.json["error"]
    assert (answer.status, error["code"], error["type"]) == (status, status, kind)
    assert set(error) == {"message", "type", "param", "code"}
    assert word in error["message"]


async def test_reset_on_arrival_answers_nothing(lab, body_of) -> None:
    """No byte comes, and the connection ends by RST."""
    prefill = lab.start("prefill")
    body = body_of("completions", "hello")
    await lab.control(prefill, "faults", leg="plain", kind="reset")
    got, error = await _raw(prefill, body)
    assert got == b""
    assert isinstance(error, ConnectionResetError)
    assert (await lab.ask(prefill, "completions", body)).status == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_reset_after_the_headers_is_a_200_without_a_body(lab, body_of, stream) -> None:
    """The status line and all headers come, a whole answer's length among them, then RST."""
    engine = lab.start("prefill")
    await lab.control(engine, "faults", leg="plain", kind="reset", when="after")
    got, error = await _raw(engine, body_of("completions", "hello", stream=stream))
    head, _, rest = got.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert (b"content-length: " in head.lower()) is not stream
    assert rest == b""
    assert isinstance(error, ConnectionResetError)


async def test_reset_after_prefill_leaves_its_blocks_behind(lab, body_of) -> None:
    """The leg was computed, so nobody knows of its blocks and they are held until reaped."""
    prefill = lab.start("prefill", defer_timeout_s=0.5)
    await lab.control(prefill, "faults", leg="prefill", kind="reset", when="after")
    with pytest.raises(aiohttp.ClientError):
        await lab.prefill(prefill, "completions", body_of("completions", "x" * 600))
    state = await lab.until(prefill, lambda state: state["reaped"] == 1)
    assert (state["held_blocks"], state["reaped_blocks"]) == (0, 3)


@pytest.mark.parametrize("stream", [False, True])
async def test_slow_serves_right_after_the_delay(lab, body_of, stream) -> None:
    """Not even a header comes before the delay; then the answer is whole and right."""
    engine = lab.start("prefill")
    await lab.control(engine, "faults", leg="plain", kind="slow", delay_s=0.3)
    body = body_of("completions", "hello", stream=stream)
    loop = asyncio.get_running_loop()
    start = loop.time()
    url = f"{engine.url}/v1/completions"
    async with lab.http.post(url, json=body) as response:
        assert loop.time() - start >= 0.29
        assert response.status == 200
        await response.read()
    assert (await lab.ask(engine, "completions", body)).text == expected_text("completions", body)


@pytest.mark.parametrize("stream", [False, True])
async def test_hang_sends_nothing_until_the_client_leaves(lab, body_of, stream) -> None:
    """The request is read and runs, no header comes, and the client's leaving ends it."""
    engine = lab.start("prefill")
    await lab.control(engine, "faults", leg="plain", kind="hang", count=-1)
    body = body_of("completions", "hello", stream=stream)
    asking = asyncio.ensure_future(_raw(engine, body))
    await lab.until(engine, lambda state: state["running"] == 1)
    assert not asking.done()
    asking.cancel()
    state = await lab.until(engine, lambda state: state["aborted"] == 1)
    assert state["running"] == 0
    assert state["tokens_sent"] == 0


async def test_cut_ends_a_stream_without_its_end(lab, body_of) -> None:
    """Three tokens come, then the connection breaks."""
    engine = lab.start("prefill", tokens_per_s=100)
    body = body_of("completions", "hello", stream=True)
    await lab.control(engine, "faults", leg="plain", kind="cut", after_tokens=3)
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
    """A stalled request runs on until its client leaves, which is an abort."""
    engine = lab.start("prefill")
    for stream in (True, False):
        await lab.control(engine, "reset")
        await lab.control(engine, "faults", leg="plain", kind="stall", after_tokens=2)
        body = body_of("completions", "hello", stream=stream)
        asking = asyncio.ensure_future(lab.ask(engine, "completions", body))
        await lab.until(engine, lambda state: state["running"] == 1)
        asking.cancel()
        await lab.until(engine, lambda state: state["aborted"] == 1)


@pytest.mark.parametrize(("kind", "reason"), [("no_kv", "length"), ("eos", "stop")])
async def test_prefill_without_kv_hands_nothing_over(lab, body_of, kind, reason) -> None:
    """The answer is a 200 whose KV parameters are null, and in READ no block is held."""
    prefill = lab.start("prefill")
    body = body_of("completions", "hello")
    await lab.control(prefill, "faults", leg="prefill", kind=kind)
    leg = await lab.prefill(prefill, "completions", body)
    assert (leg.status, leg.json["kv_transfer_params"]) == (200, None)
    assert leg.json["choices"][0]["finish_reason"] == reason
    assert leg.json["usage"]["completion_tokens"] == 1
    state = await lab.state(prefill)
    assert (state["held_transfers"], state["held_blocks"], state["errors"]) == (0, 0, {})


@pytest.mark.parametrize("kind", ["no_kv", "eos"])
async def test_write_prefill_without_kv_still_pushes(lab, body_of, kind) -> None:
    """The pushes are queued already: decode gets its blocks though prefill holds none."""
    prefill, decode = lab.pair("WRITE")
    body = body_of("completions", "hello")
    await lab.control(prefill, "faults", leg="prefill", kind=kind)
    first, second = lab.write_legs(prefill, decode, "completions", body)
    leg = await first
    assert (leg.status, leg.json["kv_transfer_params"]) == (200, None)
    assert (await lab.state(prefill))["held_blocks"] == 0
    assert (await second).text == expected_text("completions", body)


async def test_faults_are_listed_and_cleared(lab, body_of) -> None:
    """The list has each leg's kind, parameters and how many are left; DELETE empties it."""
    engine = lab.start("prefill")
    url = f"{engine.url}/sim/faults"
    await lab.control(engine, "faults", leg="plain", kind="slow", delay_s=0, count=3)
    listed = await lab.control(engine, "faults", leg="decode", kind="hang", count=-1)
    assert listed == [
        {"leg": "plain", "kind": "slow", "delay_s": 0, "left": 3},
        {"leg": "decode", "kind": "hang", "left": -1},
    ]
    await lab.ask(engine, "completions", body_of("completions", "hello"))
    async with lab.http.get(url) as response:
        assert [one["left"] for one in await response.json()] == [2, -1]
    async with lab.http.delete(url) as response:
        assert (response.status, await response.json()) == (200, [])


async def test_a_fault_without_end_hits_until_it_is_cleared(lab, body_of) -> None:
    """Count -1 does not run out, and is listed as such."""
    engine = lab.start("prefill")
    await lab.control(engine, "faults", leg="plain", kind="status", status=500, count=-1)
    body = body_of("completions", "hello")
    answers = [await lab.ask(engine, "completions", body) for _ in range(5)]
    assert [answer.status for answer in answers] == [500] * 5
    async with lab.http.get(f"{engine.url}/sim/faults") as response:
        assert [one["left"] for one in await response.json()] == [-1]
    async with lab.http.delete(f"{engine.url}/sim/faults"):
        pass
    assert (await lab.ask(engine, "completions", body)).status == 200


async def test_leg_that_may_stop_early_is_counted(lab, body_of) -> None:
    """A prefill leg without `min_tokens` 1 is an error of the router."""
    prefill = lab.start("prefill")
    body = body_of("completions", "hello", max_tokens=1)
    kv = {"do_remote_decode": True, "transfer_id": "tx-1"}
    await lab.ask(prefill, "completions", {**body, "kv_transfer_params": kv})
    assert (await lab.state(prefill))["errors"] == {"prefill_may_stop_early": 1}


async def test_pace_may_change_while_tokens_flow(lab, body_of) -> None:
    """A stream that crawls ends at once when the pace is lifted."""
    engine = lab.start("prefill", tokens_per_s=2)
    body = body_of("completions", "hello", stream=True, max_tokens=400)
    asking = asyncio.ensure_future(lab.ask(engine, "completions", body))
    await lab.until(engine, lambda state: state["tokens_sent"] >= 1)
    await lab.control(engine, "pace", tokens_per_s=0)
    assert (await asking).text == expected_text("completions", body)


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({}, "kind is missing"),
        ({"leg": "plain", "kind": "fire"}, "none of reset, status"),
        ({"leg": "plain", "kind": 7}, "kind"),
        ({"leg": "both", "kind": "cut"}, "leg"),
        ({"kind": "cut"}, "leg"),
        ({"leg": "decode", "kind": "eos"}, "leg"),
        ({"leg": "plain", "kind": "hang", "count": 0}, "count"),
        ({"leg": "plain", "kind": "hang", "count": -2}, "count"),
        ({"leg": "plain", "kind": "hang", "delay_s": 1}, "no parameter delay_s"),
        ({"leg": "plain", "kind": "slow"}, "delay_s is missing"),
        ({"leg": "plain", "kind": "slow", "delay_s": -1}, "delay_s"),
        ({"leg": "plain", "kind": "slow", "delay_s": 1e9}, "delay_s"),
        ({"leg": "plain", "kind": "reset", "when": "later"}, "when"),
        ({"leg": "plain", "kind": "status", "status": 99}, "status"),
        ({"leg": "plain", "kind": "status", "body": 7}, "body"),
        ({"leg": "plain", "kind": "status", "headers": {"a": 1}}, "headers"),
        ({"kind": "refuse"}, "for_s is missing"),
        ({"kind": "refuse", "for_s": 0}, "for_s"),
        ({"kind": "refuse", "for_s": 1, "leg": "plain"}, "leg"),
        ({"kind": "die"}, "down_s is missing"),
        ({"kind": "die", "down_s": "now"}, "down_s"),
    ],
)
async def test_unknown_faults_are_refused(lab, given, word) -> None:
    """A 400 names what is wrong, and nothing is set."""
    engine = lab.start("prefill")
    url = f"{engine.url}/sim/faults"
    async with lab.http.post(url, json=given) as response:
        assert response.status == 400
        assert word in await response.text()
    async with lab.http.get(url) as response:
        assert await response.json() == []


async def test_the_old_control_is_gone(lab) -> None:
    """/sim/fail has no alias."""
    engine = lab.start("prefill")
    async with lab.http.post(f"{engine.url}/sim/fail", json={}) as response:
        assert response.status == 404
