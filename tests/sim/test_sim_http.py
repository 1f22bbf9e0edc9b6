"""An engine's HTTP face: plain answers, refusals, health, and what the controls do."""

import asyncio
import json
import socket

import aiohttp
import pytest

from sidecar.sim.model import expected_choices, expected_text

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize(
    ("role", "mode"), [("prefill", "READ"), ("prefill", "WRITE"), ("decode", "WRITE")]
)
@pytest.mark.parametrize("api", ["completions", "chat"])
async def test_plain_requests_are_served_right(lab, body_of, role, mode, api) -> None:
    engine = lab.start(role, mode=mode)
    for stream in (False, True):
        body = body_of(api, "hello", stream=stream)
        assert (await lab.ask(engine, api, body)).text == expected_text(api, body)
    state = await lab.state(engine)
    assert state["ranks"]["plain"] == [2]
    assert state["tokens_sent"] == 2 * (16 if api == "completions" else 32)


@pytest.mark.parametrize(("version", "is_right"), [("0.32.0", False), ("0.33.0", True)])
async def test_read_decode_before_0_33_garbles_plain_requests(
    lab, body_of, version, is_right
) -> None:
    decode = lab.start("decode", version=version)
    body = body_of("completions", "hello")
    answers = [await lab.ask(decode, "completions", body) for _ in range(2)]
    assert [answer.status for answer in answers] == [200, 200]
    assert (answers[0].text == answers[1].text) is is_right
    assert (answers[0].text == expected_text("completions", body)) is is_right


async def test_several_choices_and_prompts_come_from_one_plain_request(lab) -> None:
    prefill = lab.start("prefill")
    body = {"prompt": ["one", "two"], "n": 2, "max_tokens": 3}
    whole = await lab.ask(prefill, "completions", body)
    texts = expected_choices("completions", body)
    assert len(set(texts)) == 4
    assert tuple(choice["text"] for choice in whole.json["choices"]) == texts
    streamed = await lab.ask(prefill, "completions", {**body, "stream": True})
    got = dict.fromkeys(range(4), "")
    for event in streamed.events:
        got[event["choices"][0]["index"]] += event["choices"][0]["text"]
    assert tuple(got.values()) == texts


async def test_stream_is_one_event_a_token_then_usage_then_done(lab) -> None:
    engine = lab.start("prefill")
    body = {"prompt": "a b c", "max_tokens": 5, "stream": True}
    body["stream_options"] = {"include_usage": True}
    answer = await lab.ask(engine, "completions", body, request_id="abc")
    assert len(answer.events) == 6
    assert {event["id"] for event in answer.events} == {"cmpl-abc"}
    reasons = [event["choices"][0]["finish_reason"] for event in answer.events[:5]]
    assert reasons == [None] * 4 + ["length"]
    assert answer.events[5]["choices"] == []
    usage = answer.events[5]["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (3, 5)
    assert answer.is_done


async def test_whole_answer_has_vllms_keys(lab) -> None:
    engine = lab.start("prefill")
    body = {"messages": [{"role": "user", "content": "x"}]}
    answer = (await lab.ask(engine, "chat", body, request_id="abc")).json
    assert answer["id"] == "chatcmpl-abc"
    assert answer["object"] == "chat.completion"
    assert answer["choices"][0]["message"]["role"] == "assistant"
    assert answer["kv_transfer_params"] is None
    assert answer["ec_transfer_params"] is None
    assert answer["usage"]["completion_tokens"] == 32


async def test_stream_headers_come_before_the_first_token(lab, body_of) -> None:
    engine = lab.start("prefill", ttft_ms=3600_000)
    body = body_of("completions", "hello", stream=True)
    async with lab.http.post(f"{engine.url}/v1/completions", json=body) as response:
        assert response.status == 200
        assert response.content_type == "text/event-stream"
    await lab.until(engine, lambda state: state["aborted"] == 1)


async def test_pace_is_kept_and_can_change(lab, body_of) -> None:
    engine = lab.start("prefill", tokens_per_s=50)
    loop = asyncio.get_running_loop()
    body = body_of("completions", "hello", stream=True, max_tokens=11)
    start = loop.time()
    await lab.ask(engine, "completions", body)
    assert loop.time() - start >= 0.19
    await lab.control(engine, "pace", tokens_per_s=0, ttft_ms=300)
    start = loop.time()
    await lab.ask(engine, "completions", body)
    assert loop.time() - start >= 0.29


KV = {"do_remote_decode": True, "transfer_id": "t"}


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"model": "other"}, 404),
        ({"model": 7}, 400),
        ({"prompt": 7}, 400),
        ({"prompt": []}, 400),
        ({"prompt": None}, 400),
        ({"prompt": ["a", 1]}, 400),
        ({"max_tokens": 0}, 400),
        ({"max_tokens": -1}, 400),
        ({"max_tokens": "9"}, 400),
        ({"max_tokens": True}, 400),
        ({"min_tokens": 17}, 400),
        ({"n": 0}, 400),
        ({"stream": "yes"}, 400),
        ({"stream_options": {"include_usage": True}}, 400),
        ({"kv_transfer_params": []}, 400),
        ({"kv_transfer_params": {**KV, "remote_dp_rank": "x"}}, 400),
        ({"kv_transfer_params": KV, "n": 2}, 400),
        ({"kv_transfer_params": KV, "prompt": ["a", "b"]}, 400),
        ({"prompt": [1, 2, 3]}, 200),
        ({"prompt": [[1, 2, 3]]}, 200),
        ({"min_tokens": 16, "ignore_eos": True, "seed": 1, "temperature": 0}, 200),
        ({"model": None}, 200),
        ({"max_tokens": 0, "echo": True}, 200),
    ],
)
async def test_bodies_are_checked_as_vllm_does(lab, change, status) -> None:
    engine = lab.start("prefill")
    answer = await lab.ask(engine, "completions", {"prompt": "hello", **change})
    assert answer.status == status
    if status != 200:
        assert set(answer.json["error"]) == {"message", "type", "param", "code"}
        assert answer.json["error"]["code"] == status


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b'"x"', b"\xff"])
async def test_what_is_no_json_object_is_refused(lab, raw) -> None:
    engine = lab.start("prefill")
    headers = {"Content-Type": "application/json"}
    url = f"{engine.url}/v1/completions"
    async with lab.http.post(url, data=raw, headers=headers) as response:
        assert response.status == 400
        assert (await response.json())["error"]["type"] == "Bad Request"


@pytest.mark.parametrize(
    ("rank", "status"), [("0", 200), ("1", 200), ("2", 400), ("-1", 400), ("x", 200)]
)
async def test_rank_header(lab, rank, status) -> None:
    engine = lab.start("prefill", dp_size=2)
    headers = {"X-data-parallel-rank": rank}
    url = f"{engine.url}/v1/completions"
    async with lab.http.post(url, json={"prompt": "a"}, headers=headers) as response:
        assert response.status == status
    if status == 200 and rank != "x":
        assert (await lab.state(engine))["ranks"]["plain"][int(rank)] == 1


async def test_small_routes(lab) -> None:
    engine = lab.start("prefill", model="m", version="0.32.1")
    async with lab.http.get(f"{engine.url}/version") as response:
        assert await response.json() == {"version": "0.32.1"}
    async with lab.http.get(f"{engine.url}/v1/models") as response:
        assert [model["id"] for model in (await response.json())["data"]] == ["m"]
    async with lab.http.post(f"{engine.url}/tokenize", json={"prompt": "né"}) as response:
        tokens = (await response.json())["tokens"]
    async with lab.http.post(f"{engine.url}/detokenize", json={"tokens": tokens}) as response:
        assert await response.json() == {"prompt": "né"}


async def test_health_can_be_bad_slow_or_refused(lab) -> None:
    engine = lab.start("prefill")
    url = f"{engine.url}/health"
    async with lab.http.get(url) as response:
        assert (response.status, await response.read()) == (200, b"")
    await lab.control(engine, "health", status=503)
    async with lab.http.get(url) as response:
        assert response.status == 503
    await lab.control(engine, "health", delay_s=3600)
    with pytest.raises(asyncio.TimeoutError):
        await lab.http.get(url, timeout=aiohttp.ClientTimeout(total=0.1))
    await lab.control(engine, "health", refuse=True)
    with pytest.raises(aiohttp.ClientError):
        await lab.http.get(url)
    await lab.control(engine, "health")
    async with lab.http.get(url) as response:
        assert response.status == 200


async def test_last_shows_requests_as_they_arrived(lab) -> None:
    engine = lab.start("prefill")
    raw = b'{ "prompt":"a\\u00e9",\n "x":1.50 }'
    headers = {"Content-Type": "application/json", "X-Two": "Words"}
    await (await lab.http.post(f"{engine.url}/v1/completions", data=raw, headers=headers)).read()
    async with lab.http.get(f"{engine.url}/sim/last?leg=plain") as response:
        last = (await response.json())[-1]
    assert last["body"].encode() == raw
    assert ["X-Two", "Words"] in last["headers"]
    await lab.control(engine, "reset")
    async with lab.http.get(f"{engine.url}/sim/last?leg=plain") as response:
        assert await response.json() == []


@pytest.mark.parametrize(
    ("control", "given"),
    [("hold", {}), ("hold", {"hold": 1}), ("pace", {"ttft": 1}), ("beats", {}), ("pace", [])],
)
async def test_wrong_controls_are_refused(lab, control, given) -> None:
    engine = lab.start("prefill")
    async with lab.http.post(f"{engine.url}/sim/{control}", json=given) as response:
        assert response.status == 400


async def test_idle_connections_are_closed_after_five_seconds(lab) -> None:
    engine = lab.start("prefill")
    host, port = engine.ready["http"].split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    await reader.readuntil(b"\r\n\r\n")
    loop = asyncio.get_running_loop()
    start = loop.time()
    assert await asyncio.wait_for(reader.read(), 10) == b""
    assert 3.5 < loop.time() - start < 8
    writer.close()
    await writer.wait_closed()


async def test_each_token_is_its_own_write(lab) -> None:
    engine = lab.start("prefill", tokens_per_s=8)
    host, port = engine.ready["http"].split(":")
    body = json.dumps({"prompt": "a", "stream": True, "max_tokens": 4}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    with socket.create_connection((host, int(port))) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.sendall(head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
        pieces = await asyncio.to_thread(_receive_all, client)
    assert sum(b'"text"' in piece for piece in pieces) == 4


def _receive_all(client: socket.socket) -> list[bytes]:
    pieces: list[bytes] = []
    while not pieces or b"[DONE]" not in pieces[-1]:
        piece = client.recv(65536)
        assert piece
        pieces.append(piece)
    return pieces
