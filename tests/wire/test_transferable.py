"""What one KV transfer can carry, and what one instance must serve whole."""

import json
import tracemalloc

import msgspec
import pytest

from sidecar.wire.openai import split
from sidecar.wire.paths import Api
from sidecar.wire.transferable import can_transfer


def fields(**values: object) -> dict[str, msgspec.Raw]:
    return split(json.dumps(values).encode())


@pytest.mark.parametrize(
    ("request_fields", "expected"),
    [
        ({}, False),
        ({"n": 1}, False),
        ({"n": None}, False),
        ({"n": 2}, True),
        ({"n": 1.5}, True),
        ({"best_of": 1}, False),
        ({"best_of": 3}, True),
        ({"use_beam_search": True}, True),
        ({"use_beam_search": False}, False),
        ({"echo": True}, True),
        ({"echo": None}, False),
        ({"prompt_logprobs": 0}, True),
        ({"prompt_logprobs": None}, False),
        ({"logprobs": 5}, False),
        ({"prompt": "a"}, False),
        ({"prompt": ["a"]}, False),
        ({"prompt": ["a", "b"]}, True),
        ({"prompt": [1, 2, 3]}, False),
        ({"prompt": [[1, 2]]}, False),
        ({"prompt": [[1], [2]]}, True),
        ({"prompt": []}, False),
        ({"prompt": None}, False),
        ({"prompt_embeds": "AAAA"}, False),
        ({"prompt_embeds": ["AAAA", "BBBB"]}, True),
        ({"prompt": "a", "prompt_embeds": "AAAA"}, True),
        ({"prompt": None, "prompt_embeds": "AAAA"}, False),
    ],
)
def test_what_one_transfer_cannot_carry(request_fields: dict[str, object], expected: bool) -> None:
    """Several choices, beams, echoes or prompts are served by one instance (protocol h)."""
    assert can_transfer(fields(**request_fields), Api.COMPLETIONS) is not expected


def test_several_prompts_with_white_space_before_them_are_seen() -> None:
    """However the list is written."""
    many = split(b'{"prompt": [' + b" " * 500 + b'"a" , "b"]}')
    assert not can_transfer(many, Api.COMPLETIONS)


@pytest.mark.parametrize("api", [Api.CHAT, Api.RESPONSES, Api.MESSAGES])
def test_only_completions_have_prompts(api: Api) -> None:
    """A field `prompt` elsewhere means nothing."""
    assert can_transfer(fields(prompt=["a", "b"]), api)
    assert not can_transfer(fields(n=2), api)


@pytest.mark.parametrize(
    ("api", "request_fields"),
    [
        (Api.COMPLETIONS, {"max_tokens": None, "min_tokens": 16, "logprobs": 20, "stop": "x"}),
        (Api.COMPLETIONS, {"stream": True, "stream_options": {"include_usage": True}}),
        (Api.COMPLETIONS, {"stream_options": None, "truncate_prompt_tokens": 5}),
        (Api.COMPLETIONS, {"logprobs": 0, "logprob_token_ids": []}),
        (Api.COMPLETIONS, {"stop_token_ids": [1] * 1000}),
        (Api.CHAT, {"max_tokens": 5, "max_completion_tokens": 9, "min_tokens": 9}),
        (Api.CHAT, {"logprobs": True, "top_logprobs": 5, "stop": ["a", "b", "c", "d"]}),
        (Api.CHAT, {"min_tokens": 4000, "tools": [{"type": "function"}], "seed": -1}),
        (Api.CHAT, {"temperature": "hot", "messages": 7}),
        (Api.RESPONSES, {"max_output_tokens": 64, "tools": [{"type": "function"}]}),
        (Api.MESSAGES, {"max_tokens": 64, "stop_sequences": ["x"]}),
        (Api.MESSAGES, {"tools": [{"name": "f"}]}),
    ],
)
def test_what_any_engine_takes_is_carried(api: Api, request_fields: dict[str, object]) -> None:
    """Also what engines refuse by a field that both legs have: there prefill says so first."""
    assert can_transfer(fields(**request_fields), api)


@pytest.mark.parametrize(
    ("api", "request_fields"),
    [
        (Api.COMPLETIONS, {"max_tokens": 0}),
        (Api.COMPLETIONS, {"max_tokens": -1}),
        (Api.COMPLETIONS, {"max_tokens": "7"}),
        (Api.COMPLETIONS, {"max_tokens": 7.5}),
        (Api.COMPLETIONS, {"max_tokens": True}),
        (Api.COMPLETIONS, {"max_tokens": 10**30}),
        (Api.COMPLETIONS, {"min_tokens": 17}),
        (Api.COMPLETIONS, {"max_tokens": 3, "min_tokens": 4}),
        (Api.COMPLETIONS, {"min_tokens": -1}),
        (Api.COMPLETIONS, {"stream": "yes"}),
        (Api.COMPLETIONS, {"stream_options": {"include_usage": True}}),
        (Api.COMPLETIONS, {"stream": True, "stream_options": [1]}),
        (Api.COMPLETIONS, {"stop": ""}),
        (Api.COMPLETIONS, {"stop": ["a", ""]}),
        (Api.COMPLETIONS, {"stop": list("abcde")}),
        (Api.COMPLETIONS, {"stop": 5}),
        (Api.COMPLETIONS, {"stop_token_ids": ["x"]}),
        (Api.COMPLETIONS, {"logprobs": 21}),
        (Api.COMPLETIONS, {"logprobs": -1}),
        (Api.COMPLETIONS, {"logprobs": "5"}),
        (Api.COMPLETIONS, {"logprob_token_ids": [1]}),
        (Api.COMPLETIONS, {"logprobs": 1, "logprob_token_ids": [1]}),
        (Api.COMPLETIONS, {"prompt_logprobs": False}),
        (Api.COMPLETIONS, {"truncate_prompt_tokens": "-1"}),
        (Api.COMPLETIONS, {"truncate_prompt_tokens": 1.0}),
        (Api.COMPLETIONS, {"stop_token_ids": [1] * 40_000}),
        (Api.COMPLETIONS, {"ignore_eos": 3}),
        (Api.COMPLETIONS, {"ignore_eos": None}),
        (Api.COMPLETIONS, {"min_tokens": None}),
        (Api.RESPONSES, {"ignore_eos": None}),
        (Api.RESPONSES, {"stop": ""}),
        (Api.COMPLETIONS, {"model": 3}),
        (Api.COMPLETIONS, {"truncate_prompt_tokens": -1}),
        (Api.CHAT, {"max_completion_tokens": 0}),
        (Api.CHAT, {"top_logprobs": 5}),
        (Api.CHAT, {"logprobs": 5}),
        (Api.CHAT, {"logprobs": False, "top_logprobs": 2}),
        (Api.RESPONSES, {"max_output_tokens": 0}),
        (Api.RESPONSES, {"tools": [{"type": "function"}, {"type": "web_search"}]}),
        (Api.RESPONSES, {"tools": "all"}),
        (Api.MESSAGES, {"max_tokens": 0}),
        (Api.MESSAGES, {"stop_sequences": "x"}),
        (Api.BATCH, {}),
    ],
    ids=str,
)
def test_what_prefill_would_not_see_is_refused_by_one_engine(
    api: Api, request_fields: dict[str, object]
) -> None:
    """Decode would refuse it after prefill was spent, and prefill's KV would be left behind."""
    assert not can_transfer(fields(**request_fields), api)


def test_more_tokens_than_the_model_has_are_for_one_engine_to_refuse() -> None:
    """As far as its length is known; what fits is carried."""
    for asked in (fields(max_tokens=1025), fields(min_tokens=1025)):
        assert can_transfer(asked, Api.CHAT)
        assert can_transfer(asked, Api.CHAT, 1025)
        assert not can_transfer(asked, Api.CHAT, 1024)


def parts(*parts_: dict[str, object]) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": list(parts_)}]}


def image(**what: object) -> dict[str, object]:
    return parts({"type": "image_url", **what})


@pytest.mark.parametrize(
    ("api", "request_fields", "expected"),
    [
        (Api.CHAT, image(image_url={"url": "data:image/png;base64,AAAA"}), True),
        (Api.CHAT, image(image_url={"url": "http://x/a.png"}), False),
        (Api.CHAT, image(image_url="https://x/a.png"), False),
        (Api.CHAT, image(image_url={"url": "file:///a.png"}), False),
        (Api.CHAT, image(image_url={"url": "DATA:image/png;base64,AAAA"}), False),
        (Api.CHAT, image(image_url=None, uuid="x"), False),
        (Api.CHAT, {"messages": [{"content": 'see "image_url": "http://x" there'}]}, True),
        (Api.CHAT, {"messages": [{"content": "http://x and a url and its source"}]}, True),
        (Api.CHAT, {"messages": [{"content": r"the escape \u0041 in a text"}]}, True),
        (Api.CHAT, {"messages": [{"tool_calls": [{"arguments": '{"url":"http://x"}'}]}]}, True),
        (Api.RESPONSES, {"input": [{"type": "input_image", "image_url": "http://x"}]}, False),
        (Api.RESPONSES, {"input": [{"type": "input_image", "image_url": "data:,"}]}, True),
        (Api.RESPONSES, {"input": [{"type": "input_file", "file_id": "f"}]}, False),
        (Api.MESSAGES, parts({"source": {"type": "url", "url": "http://x"}}), False),
        (Api.MESSAGES, parts({"source": {"type": "base64", "data": "AA"}}), True),
    ],
    ids=str,
)
def test_what_engines_would_fetch_is_fetched_by_one(
    api: Api, request_fields: dict[str, object], expected: bool
) -> None:
    """Two may get two things, and then the KV is of another prompt."""
    assert can_transfer(fields(**request_fields), api) is expected


def test_a_key_that_is_written_with_escapes_hides_nothing() -> None:
    """Nobody writes letters so but to hide them."""
    for key in ("image\\u005furl", "\\u0075rl", "u\\u0072l"):
        body = split(b'{"messages":[{"content":[{"%b":"http://x"}]}]}' % key.encode())
        assert not can_transfer(body, Api.CHAT)


@pytest.mark.parametrize(
    "body",
    [
        b'{"prompt":[%b""]}' % (b'"",' * 3_000_000),
        b'{"prompt":[%b[1]]}' % (b"[1]," * 3_000_000),
        b'{"tools":[%b{}]}' % (b"{}," * 3_000_000),
        b'{"stop":[%b""]}' % (b'"",' * 3_000_000),
        b'{"stop_token_ids":[%b1]}' % (b"1," * 3_000_000),
    ],
    ids=["strings", "lists", "tools", "stops", "ids"],
)
def test_a_list_of_millions_is_not_made(body: bytes) -> None:
    """A worker that makes it answers nobody meanwhile: what is told of it needs no list."""
    read = split(body)
    tracemalloc.start()
    try:
        assert not can_transfer(read, Api.COMPLETIONS if b"tools" not in body else Api.RESPONSES)
        assert tracemalloc.get_traced_memory()[1] < len(body) + (1 << 20)
    finally:
        tracemalloc.stop()
