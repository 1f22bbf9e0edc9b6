"""What vLLM refuses is refused, with its status, its shape and the field at fault."""

import pytest

pytestmark = pytest.mark.asyncio
CHAT = {"messages": [{"role": "user", "content": "hi"}]}
TOOL = {"type": "function", "function": {"name": "f"}}
BAD, INVALID = "BadRequestError", "Bad Request"


COMPLETIONS = [
    ({"max_tokens": 0}, BAD, "max_tokens"),
    ({"max_tokens": 101}, BAD, "max_tokens"),
    ({"max_tokens": 3.5}, INVALID, "body.max_tokens"),
    ({"max_tokens": 2**70}, BAD, "max_tokens"),
    ({"min_tokens": -1}, BAD, None),
    ({"min_tokens": None}, INVALID, "body.min_tokens"),
    ({"min_tokens": 20}, BAD, None),
    ({"n": 0}, BAD, None),
    ({"n": None}, INVALID, "body.n"),
    ({"n": 2, "temperature": 0}, BAD, None),
    ({"temperature": -0.1}, BAD, "temperature"),
    ({"temperature": 2.1}, BAD, "temperature"),
    ({"temperature": "hot"}, INVALID, "body.temperature"),
    ({"top_p": 0}, BAD, "top_p"),
    ({"top_p": 1.1}, BAD, "top_p"),
    ({"top_k": -2}, BAD, None),
    ({"min_p": 2}, BAD, None),
    ({"presence_penalty": 3}, BAD, None),
    ({"repetition_penalty": 0}, BAD, None),
    ({"seed": "x"}, INVALID, "body.seed"),
    ({"logprobs": -2}, BAD, "logprobs"),
    ({"logprobs": -1}, BAD, None),
    ({"logprobs": 21}, BAD, None),
    ({"logprobs": True}, INVALID, "body.logprobs"),
    ({"prompt_logprobs": -3}, BAD, "prompt_logprobs"),
    ({"logprob_token_ids": [1]}, BAD, "logprob_token_ids"),
    ({"stop": ""}, BAD, None),
    ({"stop": [""]}, BAD, None),
    ({"stop": 7}, INVALID, "body.stop"),
    ({"stop": ["a"] * 5}, INVALID, "body.stop"),
    ({"stop_token_ids": ["a"]}, INVALID, "body.stop_token_ids"),
    ({"stream_options": {}, "stream": 1}, INVALID, "body.stream"),
    ({"stream_options": {"include_usage": True}}, BAD, "stream_options"),
    ({"prompt": ""}, BAD, "prompt"),
    ({"prompt": [-1]}, INVALID, "body.prompt"),
    ({"prompt": [""]}, BAD, None),
    ({"prompt": ["a"] * 1025}, BAD, "prompt"),
    ({"prompt": "a " * 101}, BAD, "input_tokens"),
    ({"prompt": "a " * 100}, BAD, "max_tokens"),
    ({"cache_salt": ""}, BAD, "cache_salt"),
    ({"cache_salt": "a/b"}, BAD, "cache_salt"),
    ({"truncate_prompt_tokens": -2}, INVALID, "body.truncate_prompt_tokens"),
    ({"response_format": {"type": "json_schema"}}, BAD, "response_format"),
    ({"structured_outputs": {"json": {}, "regex": "a"}}, BAD, "structured_outputs"),
    (
        {"use_beam_search": True, "echo": True, "logprobs": 1},
        BAD,
        "echo",
    ),
]


async def test_completions(lab) -> None:
    """Each with its type and the field at fault."""
    engine = lab.start("prefill", max_model_len=100)
    for change, kind, param in COMPLETIONS:
        reply = await lab.post(engine, "/v1/completions", {"prompt": "hello", **change})
        error = reply.error
        found = (reply.status, error["type"], error["param"], error["code"])
        assert found == (400, kind, param, 400), change
        if kind == INVALID:
            assert error["message"].startswith("1 validation error:\n  {'type': ")


CHATS = [
    ({"messages": []}, "body.messages"),
    ({"messages": ["hi"]}, "body.messages.0.role"),
    ({"messages": [{"content": "hi"}]}, "body.messages.0.role"),
    ({"messages": None}, "body.messages"),
    ({"logprobs": 3}, "body.logprobs"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": -2}, "top_logprobs"),
    ({"continue_final_message": True, "add_generation_prompt": True}, None),
    ({"tools": []}, "tools"),
    ({"tools": {}}, "body.tools"),
    ({"tools": [{}]}, "body.tools.0.function"),
    ({"tool_choice": "auto"}, "tool_choice"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": "any"}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": {"function": {}}}, "tool_choice.function.name"),
    ({"tools": [TOOL], "tool_choice": {"type": "function"}}, "tool_choice.function"),
    ({"tools": [TOOL], "tool_choice": {"function": {"name": "g"}}}, "tool_choice"),
]


async def test_chats(lab) -> None:
    """All found by vLLM's request models, each with the field at fault: pydantic names it within
    the body."""
    engine = lab.start("prefill")
    for change, param in CHATS:
        reply = await lab.post(engine, "/v1/chat/completions", {**CHAT, **change})
        found = (reply.status, reply.error["type"], reply.error["param"])
        kind = INVALID if str(param).startswith("body.") else BAD
        assert found == (400, kind, param), change


async def test_an_unknown_model_is_not_found(lab) -> None:
    engine = lab.start("prefill")
    body = {**CHAT, "input": "a", "model": "other"}
    for path in ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/embeddings"):
        prompt = {"prompt": "a"} if path == "/v1/completions" else {}
        reply = await lab.post(engine, path, {**body, **prompt})
        assert reply.status == 404
        assert reply.error == {
            "message": "The model `other` does not exist. Valid aliases: sim-model.",
            "type": "NotFoundError",
            "param": "model",
            "code": 404,
        }
