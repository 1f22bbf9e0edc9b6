"""Tools, response formats and images of a chat: each is seen in the answer."""

import base64
import json

import pytest

pytestmark = pytest.mark.asyncio
CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "clock"}},
]
NAMED = {"type": "function", "function": {"name": "weather"}}


def called(events) -> tuple[str, str, str, str]:
    """(id, name, arguments, finish reason) of a streamed tool call."""
    choices = [event["choices"][0] for _, event in events]
    calls = [call for one in choices for call in one["delta"].get("tool_calls", ())]
    arguments = "".join(call["function"].get("arguments", "") for call in calls)
    return calls[0]["id"], calls[0]["function"]["name"], arguments, choices[-1]["finish_reason"]


@pytest.mark.parametrize(
    ("choice", "text", "reason"),
    [
        ("required", "hello", "tool_calls"),
        (NAMED, "hello", "stop"),
        ("auto", "<tool>", "tool_calls"),
    ],
)
async def test_a_tool_is_called_whole_and_streamed(lab, choice, text, reason) -> None:
    engine = lab.start("prefill")
    messages = [{"role": "user", "content": text}]
    body = {"messages": messages, "tools": TOOLS, "tool_choice": choice}
    whole = (await lab.post(engine, CHAT, body)).choice
    (call,) = whole["message"]["tool_calls"]
    assert call["type"] == "function"
    assert call["function"]["name"] in ("weather", "clock")
    arguments = json.loads(call["function"]["arguments"])
    if call["function"]["name"] == "weather":
        assert (type(arguments["city"]), type(arguments["days"])) == (str, int)
    assert whole["finish_reason"] == reason
    assert whole["message"]["content"] == (None if choice == "auto" else "")
    streamed = await lab.post(engine, CHAT, {**body, "stream": True})
    shown = (call["id"], call["function"]["name"], call["function"]["arguments"], reason)
    assert called(streamed.events) == shown


async def test_a_named_tool_is_the_one_and_other_messages_call_otherwise(lab) -> None:
    engine = lab.start("prefill")
    calls = []
    for text in ("hello", "hello!"):
        messages = [{"role": "user", "content": text}]
        body = {"messages": messages, "tools": TOOLS, "tool_choice": NAMED}
        calls.append((await lab.post(engine, CHAT, body)).choice["message"]["tool_calls"][0])
    assert {call["function"]["name"] for call in calls} == {"weather"}
    assert calls[0]["function"]["arguments"] != calls[1]["function"]["arguments"]


@pytest.mark.parametrize("choice", ["none", "auto", None])
async def test_no_tool_is_called_unasked(lab, choice) -> None:
    engine = lab.start("prefill")
    body = {"messages": HELLO, "tools": TOOLS, "tool_choice": choice}
    found = (await lab.post(engine, CHAT, body)).choice
    assert "tool_calls" not in found["message"]
    assert found["finish_reason"] == "length"


async def test_a_call_that_is_cut_short_says_so(lab) -> None:
    engine = lab.start("prefill")
    body = {"messages": HELLO, "tools": TOOLS, "tool_choice": NAMED}
    whole = (await lab.post(engine, CHAT, body)).choice["message"]["tool_calls"][0]
    cut = (await lab.post(engine, CHAT, {**body, "max_tokens": 3})).choice
    assert cut["finish_reason"] == "length"
    arguments = cut["message"]["tool_calls"][0]["function"]["arguments"]
    assert whole["function"]["arguments"].startswith(arguments)
    assert arguments != whole["function"]["arguments"]


@pytest.mark.parametrize(
    "change",
    [
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": SCHEMA},
            }
        },
        {"structured_outputs": {"json": SCHEMA}},
        {"structured_outputs": {"json": json.dumps(SCHEMA)}},
    ],
)
async def test_a_schema_is_answered_with_its_json(lab, change) -> None:
    engine = lab.start("prefill")
    body = {"messages": HELLO, **change}
    whole = (await lab.post(engine, CHAT, body)).choice
    found = json.loads(whole["message"]["content"])
    assert (type(found["city"]), type(found["days"])) == (str, int)
    assert whole["finish_reason"] == "stop"
    assert (await lab.ask(engine, "chat", {**body, "stream": True})).text == whole["message"][
        "content"
    ]


async def test_other_forms(lab) -> None:
    """Any object; one of the choices; a text; and what 0.33 no longer knows is ignored."""
    engine = lab.start("prefill")

    async def content(**body) -> str:
        reply = await lab.post(engine, CHAT, {"messages": HELLO, **body})
        return reply.choice["message"]["content"]

    assert json.loads(await content(response_format={"type": "json_object"}))
    assert await content(structured_outputs={"choice": ["yes", "no"]}) in ("yes", "no")
    assert await content(guided_json=SCHEMA) == await content()
    assert len((await content(response_format={"type": "text"})).split()) == 32


async def test_reasoning_effort_shapes_the_prompt(lab) -> None:
    engine = lab.start("prefill")
    bodies = [{"messages": HELLO, **more} for more in ({}, {"reasoning_effort": "low"})]
    texts = [(await lab.post(engine, CHAT, b)).choice["message"]["content"] for b in bodies]
    assert texts[0] != texts[1]


def with_image(url) -> dict:
    parts = [{"type": "text", "text": "what?"}, {"type": "image_url", "image_url": {"url": url}}]
    return {"messages": [{"role": "user", "content": parts}], "max_tokens": 4}


def data_url(image: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{base64.b64encode(image).decode()}"


async def test_an_images_bytes_shape_the_prompt(lab) -> None:
    """Not the way its URL is written; and it takes KV blocks of its own."""
    engine = lab.start("prefill")

    async def ask(url):
        reply = await lab.post(engine, CHAT, with_image(url))
        return reply.choice["message"]["content"], reply.json["usage"]["prompt_tokens"]

    one, other = data_url(b"a" * 3000), data_url(b"a" * 2999 + b"b")
    assert await ask(one) != await ask(other)
    assert await ask(one) == await ask(one.replace("data:image", "DATA:IMAGE"))
    assert (await ask(one))[1] > 40
    params = {"do_remote_decode": True, "transfer_id": "t"}
    leg = {"max_tokens": 1, "min_tokens": 1, "kv_transfer_params": params}
    await lab.post(engine, CHAT, {**with_image(one), **leg})
    assert (await lab.state(engine))["held_blocks"] > 3000 // 256


async def test_what_is_no_image_is_refused(lab) -> None:
    engine = lab.start("prefill")
    bad = ["http://127.0.0.1/a.png", "https://x/y", "data:image/png;base64,%%", "data:,x", 7, None]
    for url in [*bad, data_url(b"")]:
        reply = await lab.post(engine, CHAT, with_image(url))
        assert (reply.status, reply.error["type"]) == (400, "BadRequestError"), url


@pytest.mark.parametrize(
    "body",
    [
        with_image(data_url(b"picture" * 99)),
        {"messages": HELLO, "tools": TOOLS, "tool_choice": "required"},
        {"messages": HELLO, "response_format": {"type": "json_object"}},
        {"messages": HELLO, "logprobs": True, "top_logprobs": 2, "temperature": 1, "seed": 4},
        {"messages": [{"role": "user", "content": "x <eos:7>"}], "n": 1},
    ],
)
async def test_a_pair_answers_as_one_engine_does(lab, body) -> None:
    """READ; but for the ids, the times and the parameters."""
    pair = lab.pair("READ")
    one_token = {"max_tokens": 1, "min_tokens": 1, "ignore_eos": True}
    _, second = await lab.legs(pair, CHAT, body, one_token)
    alone = await lab.post(pair[0], CHAT, body)
    assert second.json["choices"] == alone.json["choices"]
    assert second.json["usage"] == alone.json["usage"]
    assert (await lab.state(pair[1]))["errors"] == {}
