"""/v1/messages: Anthropic's shape and events as vLLM has them, and both legs of a transfer."""

import base64
import json

import pytest

from sidecar.sim.model import expected_text

pytestmark = pytest.mark.asyncio
PATH, COUNT = "/v1/messages", "/v1/messages/count_tokens"
HELLO = [{"role": "user", "content": "hello"}]
BODY = {"model": "sim-model", "max_tokens": 5, "messages": HELLO}
TOOL = {
    "name": "weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}


async def test_a_message_has_anthropics_shape(lab) -> None:
    engine = lab.start("prefill")
    answer = (await lab.post(engine, PATH, BODY, X_Request_Id="abc")).json
    text = expected_text("chat", {"messages": HELLO}, 5)
    assert answer == {
        "id": "chatcmpl-abc",
        "type": "message",
        "role": "assistant",
        "model": "sim-model",
        "content": [{"type": "text", "text": text}],
        "stop_reason": "max_tokens",
        "usage": {"input_tokens": 2, "output_tokens": 5},
    }


async def test_the_events_are_anthropics(lab) -> None:
    engine = lab.start("prefill")
    whole = (await lab.post(engine, PATH, BODY)).json
    streamed = await lab.post(engine, PATH, {**BODY, "stream": True})
    assert [name for name, _ in streamed.events] == [
        "message_start",
        "content_block_start",
        *["content_block_delta"] * 5,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert all(name == data["type"] for name, data in streamed.events)
    deltas = streamed.named("content_block_delta")
    assert "".join(one["delta"]["text"] for one in deltas) == whole["content"][0]["text"]
    (end,) = streamed.named("message_delta")
    assert end["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    assert end["usage"] == whole["usage"]
    assert not streamed.is_done


@pytest.mark.parametrize("stream", [False, True])
async def test_why_it_ended(lab, stream) -> None:
    engine = lab.start("prefill")
    word = expected_text("chat", {"messages": HELLO}, 3).split()[2]
    early = [{"role": "user", "content": "<eos:1> hello"}]
    for change, expected in (
        ({"stop_sequences": [word]}, ("stop_sequence", word)),
        ({"messages": early}, ("end_turn", None)),
        ({"tools": [TOOL], "tool_choice": {"type": "any"}, "max_tokens": 90}, ("tool_use", None)),
        ({"tools": [TOOL], "tool_choice": {"type": "any"}, "max_tokens": 2}, ("max_tokens", None)),
    ):
        reply = await lab.post(engine, PATH, {**BODY, **change, "stream": stream})
        found = reply.named("message_delta")[0]["delta"] if stream else reply.json
        assert (found["stop_reason"], found.get("stop_sequence")) == expected


async def test_an_empty_answer_is_one_empty_text(lab) -> None:
    engine = lab.start("prefill")
    body = {**BODY, "messages": [{"role": "user", "content": "<eos:1>"}]}
    assert (await lab.post(engine, PATH, body)).json["content"] == [{"type": "text", "text": ""}]
    streamed = await lab.post(engine, PATH, {**body, "stream": True})
    assert [name for name, _ in streamed.events] == [
        "message_start",
        "message_delta",
        "message_stop",
    ]


async def test_a_tool_is_used_whole_and_streamed(lab) -> None:
    engine = lab.start("prefill")
    choice = {"type": "tool", "name": "weather"}
    body = {**BODY, "max_tokens": 90, "tools": [TOOL], "tool_choice": choice}
    (block,) = (await lab.post(engine, PATH, body)).json["content"]
    assert (block["type"], block["name"]) == ("tool_use", "weather")
    assert isinstance(block["input"]["city"], str)
    streamed = await lab.post(engine, PATH, {**body, "stream": True})
    (start,) = streamed.named("content_block_start")
    assert start["content_block"] == {**block, "input": {}}
    deltas = streamed.named("content_block_delta")
    assert json.loads("".join(one["delta"]["partial_json"] for one in deltas)) == block["input"]


async def test_what_shapes_the_text(lab) -> None:
    engine = lab.start("prefill")
    image = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(b"x").decode()}
    parts = [{"type": "text", "text": "hello"}]
    result = [{"type": "tool_result", "tool_use_id": "t", "content": "3"}]
    use = [{"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}]
    called = [*HELLO, {"role": "assistant", "content": use}]
    changes = [
        {},
        {"system": "be brief"},
        {"messages": [{"role": "user", "content": [*parts, {"type": "image", "source": image}]}]},
        {"messages": called},
        {"messages": [*called, {"role": "user", "content": result}]},
        {"temperature": 0.5},
        {"thinking": {"type": "disabled"}},
        {"tools": [TOOL], "tool_choice": {"type": "none"}},
    ]
    texts = [
        (await lab.post(engine, PATH, {**BODY, **change})).json["content"][0]["text"]
        for change in [*changes, {"messages": [{"role": "user", "content": parts}]}]
    ]
    assert len(set(texts)) == len(changes)
    assert texts[0] == texts[-1]


@pytest.mark.parametrize(
    ("change", "status", "kind"),
    [
        ({"model": "other"}, 404, "not_found_error"),
        ({"temperature": 3}, 400, "invalid_request_error"),
        ({"max_tokens": 2**25}, 400, "invalid_request_error"),
    ],
)
async def test_what_the_handler_refuses_has_anthropics_shape(lab, change, status, kind) -> None:
    engine = lab.start("prefill")
    for path in (PATH, COUNT) if status == 404 else (PATH,):
        reply = await lab.post(engine, path, {**BODY, **change})
        assert (reply.status, reply.json["type"], reply.error["type"]) == (status, "error", kind)


async def test_what_the_request_model_refuses_has_openais(lab) -> None:
    """vLLM has one handler of invalid bodies for all paths."""
    engine = lab.start("prefill")
    for change in (
        {"max_tokens": ...},
        {"max_tokens": 0},
        {"model": ...},
        {"messages": ...},
        {"messages": [{"role": "tool", "content": "a"}]},
        {"messages": [{"role": "user", "content": [{"type": "video"}]}]},
        {"stop_sequences": ["a"] * 5},
        {"thinking": {"type": "enabled", "budget_tokens": 5}},
        {"thinking": {"type": "enabled", "budget_tokens": 2000}},
        {"tool_choice": {"type": "tool"}},
    ):
        body = {key: value for key, value in {**BODY, **change}.items() if value is not ...}
        reply = await lab.post(engine, PATH, body)
        assert (reply.status, reply.error["type"]) == (400, "Bad Request"), change


async def test_tokens_are_counted_as_a_message_would_be_billed(lab) -> None:
    engine = lab.start("prefill")
    body = {key: BODY[key] for key in ("model", "messages")} | {"system": "be very brief"}
    counted = (await lab.post(engine, COUNT, body)).json["input_tokens"]
    message = (await lab.post(engine, PATH, {**body, "max_tokens": 1})).json
    assert counted == message["usage"]["input_tokens"] == 5


@pytest.mark.parametrize("stream", [False, True])
async def test_a_pair_answers_as_one_engine_does(lab, stream) -> None:
    pair = lab.pair("READ")
    thinking = {"type": "enabled", "budget_tokens": 1024}
    body = {**BODY, "max_tokens": 2000, "stop_sequences": ["an"], "thinking": thinking}
    body["stream"] = stream
    one_token = {"max_tokens": 1, "stop_sequences": None}
    first, second = await lab.legs(pair, PATH, body, one_token)
    assert first.json["kv_transfer_params"]["do_remote_prefill"] is True
    alone = await lab.post(pair[0], PATH, body)
    if stream:
        assert second.events[1:] == alone.events[1:]
    else:
        assert {**second.json, "id": ""} == {**alone.json, "id": ""}
    for engine in pair:
        assert (await lab.state(engine))["errors"] == {}


async def test_a_prefill_leg_that_ends_at_once_hands_nothing_over(lab) -> None:
    pair = lab.pair("READ")
    body = {**BODY, "messages": [{"role": "user", "content": "<eos:1>"}]}
    first, _ = await lab.legs(pair, PATH, body, {"max_tokens": 1})
    assert "kv_transfer_params" not in first.json
    assert (await lab.state(pair[0]))["held_blocks"] == 0


async def test_a_stream_that_fails_ends_with_an_error_event(lab) -> None:
    decode = lab.start("decode")
    params = {"do_remote_prefill": True, "remote_block_ids": [[1]], "transfer_id": "t"}
    params |= {"remote_host": "127.0.0.1", "remote_handshake_port": 9, "remote_notify_port": 9}
    reply = await lab.post(decode, PATH, {**BODY, "stream": True, "kv_transfer_params": params})
    assert [name for name, _ in reply.events] == ["error"]
    assert reply.events[0][1]["error"]["type"] == "api_error"
