"""/v1/responses: vLLM's shape and events, and both legs of a transfer."""

import json

import aiohttp
import pytest

from sidecar.sim.model import expected_text

pytestmark = pytest.mark.asyncio
PATH = "/v1/responses"
TOOL = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
ONE_TOKEN = {"max_output_tokens": 1}


def text_of(response) -> str:
    return response["output"][0]["content"][0]["text"]


async def test_a_response_has_vllms_shape(lab) -> None:
    """Its id is the body's, whatever the header says; ended by length it is incomplete."""
    engine = lab.start("prefill")
    body = {"input": "hello", "max_output_tokens": 5, "request_id": "resp_own", "user": "u"}
    answer = (await lab.post(engine, PATH, body, X_Request_Id="header")).json
    assert (answer["id"], answer["object"], answer["status"]) == (
        "resp_own",
        "response",
        "incomplete",
    )
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
    assert (answer["max_output_tokens"], answer["user"], answer["tool_choice"]) == (5, "u", "none")
    assert answer["output"][0]["status"] == "completed"
    assert (answer["usage"]["output_tokens"], answer["kv_transfer_params"]) == (5, None)
    chat = {"messages": [{"role": "user", "content": "hello"}]}
    assert text_of(answer) == expected_text("chat", chat, 5)
    named_otherwise = (await lab.post(engine, PATH, {"input": "hello"}, X_Request_Id="h")).json
    assert named_otherwise["id"].startswith("resp_")


async def test_it_ends_early_and_is_complete(lab) -> None:
    engine = lab.start("prefill")
    answer = (await lab.post(engine, PATH, {"input": "<eos:4> hello"})).json
    assert (answer["status"], answer["incomplete_details"]) == ("completed", None)
    assert answer["usage"]["output_tokens"] == 4
    empty = (await lab.post(engine, PATH, {"input": "<eos:1> hello"})).json
    assert empty["output"][0]["content"] == []
    ignored = (await lab.post(engine, PATH, {"input": "<eos:4> hello", "ignore_eos": True})).json
    assert ignored["status"] == "incomplete"


async def test_what_shapes_the_text(lab) -> None:
    engine = lab.start("prefill")
    item = {"role": "user", "content": [{"type": "input_text", "text": "hello"}]}
    same = [{"input": "hello"}, {"input": [{"role": "user", "content": "hello"}]}]
    other = [
        {"input": "hello", "instructions": "be brief"},
        {"input": [item]},
        {"input": "hello", "temperature": 1.0},
        {"input": "hello", "temperature": 1.0, "seed": 7},
        {"input": "hello", "tools": [TOOL], "tool_choice": "none"},
        {"input": "hello", "tools": [{"type": "web_search_preview"}]},
        {"input": "hello", "reasoning": {"effort": "low"}},
        {
            "input": [
                {"role": "user", "content": "hello"},
                {"type": "function_call_output", "output": "1"},
            ]
        },
    ]
    texts = [text_of((await lab.post(engine, PATH, body)).json) for body in [*same, *other]]
    assert texts[0] == texts[1]
    assert len(set(texts)) == 1 + len(other)


async def test_the_events_are_vllms_and_numbered(lab) -> None:
    engine = lab.start("prefill")
    body = {"input": "hello", "max_output_tokens": 3, "request_id": "resp_1"}
    whole = (await lab.post(engine, PATH, body)).json
    streamed = await lab.post(engine, PATH, {**body, "stream": True})
    assert [name for name, _ in streamed.events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * 3,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    assert [data["sequence_number"] for _, data in streamed.events] == list(range(11))
    assert all(name == data["type"] for name, data in streamed.events)
    assert not streamed.is_done
    deltas = streamed.named("response.output_text.delta")
    assert "".join(one["delta"] for one in deltas) == text_of(whole)
    last = streamed.events[-1][1]["response"]
    assert {**last, "created_at": 0} == {**whole, "created_at": 0}


async def test_an_early_end_completes_the_stream(lab) -> None:
    engine = lab.start("prefill")
    for text, count in (("<eos:3>", 2), ("<eos:1>", 0)):
        streamed = await lab.post(engine, PATH, {"input": text, "stream": True})
        assert len(streamed.named("response.output_text.delta")) == count
        assert streamed.events[-1][0] == "response.completed"


async def test_a_function_is_called_whole_and_streamed(lab) -> None:
    engine = lab.start("prefill")
    body = {"input": "hello", "tools": [TOOL], "tool_choice": "required", "request_id": "resp_1"}
    whole = (await lab.post(engine, PATH, body)).json
    (call,) = whole["output"]
    assert (call["type"], call["name"], call["status"]) == ("function_call", "weather", "completed")
    assert isinstance(json.loads(call["arguments"])["city"], str)
    streamed = await lab.post(engine, PATH, {**body, "stream": True})
    deltas = streamed.named("response.function_call_arguments.delta")
    assert "".join(one["delta"] for one in deltas) == call["arguments"]
    assert streamed.named("response.output_item.done")[0]["item"] == call
    named = {**body, "tool_choice": {"type": "function", "name": "weather"}}
    assert (await lab.post(engine, PATH, named)).json["output"][0]["name"] == "weather"


async def test_a_format_and_logprobs(lab) -> None:
    engine = lab.start("prefill")
    form = {"type": "json_schema", "name": "x", "schema": TOOL["parameters"]}
    answer = (await lab.post(engine, PATH, {"input": "a", "text": {"format": form}})).json
    assert isinstance(json.loads(text_of(answer))["city"], str)
    body = {"input": "a", "include": ["message.output_text.logprobs"], "top_logprobs": 2}
    part = (await lab.post(engine, PATH, body)).json["output"][0]["content"][0]
    assert "".join(one["token"] for one in part["logprobs"]) == part["text"]
    assert len(part["logprobs"][0]["top_logprobs"]) == 2


@pytest.mark.parametrize(
    ("body", "status", "kind", "param"),
    [
        ({}, 400, "Bad Request", "body.input"),
        ({"input": 7}, 400, "Bad Request", "body.input"),
        ({"input": []}, 400, "Bad Request", "body.messages"),
        ({"input": "a", "background": True}, 400, "invalid_request_error", "background"),
        ({"input": "a", "background": True, "store": False}, 400, "BadRequestError", "background"),
        (
            {"input": "a", "previous_response_id": "resp_x"},
            404,
            "invalid_request_error",
            "response_id",
        ),
        ({"input": "a", "max_output_tokens": 0}, 400, "BadRequestError", "max_tokens"),
        ({"input": "a", "max_output_tokens": "x"}, 400, "Bad Request", "body.max_output_tokens"),
        ({"input": "a", "temperature": 3}, 400, "BadRequestError", "temperature"),
        ({"input": "a", "tool_choice": "required"}, 400, "BadRequestError", "tool_choice"),
        ({"input": "a", "prompt": {}}, 400, "BadRequestError", "prompt"),
    ],
)
async def test_refusals(lab, body, status, kind, param) -> None:
    engine = lab.start("prefill")
    reply = await lab.post(engine, PATH, body)
    assert (reply.status, reply.error["type"], reply.error["param"]) == (status, kind, param)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_pair_answers_as_one_engine_does(lab, stream) -> None:
    pair = lab.pair("READ")
    body = {"input": "hello", "instructions": "x", "max_output_tokens": 9, "request_id": "resp_1"}
    body["stream"] = stream
    first, second = await lab.legs(pair, PATH, body, ONE_TOKEN)
    assert first.json["kv_transfer_params"]["do_remote_prefill"] is True
    alone = await lab.post(pair[0], PATH, body)
    if stream:
        second.json, alone.json = (r.events[-1][1]["response"] for r in (second, alone))
    assert second.json["output"] == alone.json["output"]
    for engine in pair:
        assert (await lab.state(engine))["errors"] == {}


async def test_a_prefill_leg_that_ends_at_once_hands_nothing_over(lab) -> None:
    pair = lab.pair("READ")
    first, _ = await lab.legs(pair, PATH, {"input": "<eos:1>"}, ONE_TOKEN)
    assert (first.json["kv_transfer_params"], first.json["status"]) == (None, "completed")
    assert (await lab.state(pair[0]))["held_blocks"] == 0


async def test_a_stream_that_fails_is_cut(lab) -> None:
    """vLLM has no event for an error here."""
    decode = lab.start("decode")
    params = {"do_remote_prefill": True, "remote_block_ids": [[1]], "transfer_id": "t"}
    params |= {"remote_host": "127.0.0.1", "remote_handshake_port": 9, "remote_notify_port": 9}
    body = {"input": "a", "stream": True, "kv_transfer_params": params}
    with pytest.raises(aiohttp.ClientPayloadError):
        await lab.post(decode, PATH, body)
