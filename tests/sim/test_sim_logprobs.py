"""Log probabilities have vLLM's shapes, follow from the tokens, and are the same streamed."""

import pytest

pytestmark = pytest.mark.asyncio
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hello you"}]


async def test_those_of_a_completion(lab) -> None:
    engine = lab.start("prefill")
    body = {"prompt": "a b", "max_tokens": 4, "logprobs": 3}
    choice = (await lab.post(engine, COMPLETIONS, body)).choice
    found = choice["logprobs"]
    assert "".join(found["tokens"]) == choice["text"]
    assert found["text_offset"] == [choice["text"].index(token) for token in found["tokens"]]
    assert all(number < 0 for number in found["token_logprobs"])
    for token, number, top in zip(
        found["tokens"], found["token_logprobs"], found["top_logprobs"], strict=True
    ):
        assert len(top) == 3
        assert top[token] == number == max(top.values())
    streamed = await lab.post(engine, COMPLETIONS, {**body, "stream": True})
    pieces = [event["choices"][0]["logprobs"] for _, event in streamed.events]
    for key in found:
        assert [one for piece in pieces for one in piece[key]] == found[key]


async def test_none_but_the_tokens_own(lab) -> None:
    engine = lab.start("prefill")
    found = (await lab.post(engine, COMPLETIONS, {"prompt": "a", "logprobs": 0})).choice["logprobs"]
    assert {len(top) for top in found["top_logprobs"]} == {1}


async def test_echoed_prompts_come_first_and_their_first_token_has_none(lab) -> None:
    engine = lab.start("prefill")
    body = {"prompt": "one two three", "max_tokens": 2, "logprobs": 1, "echo": True}
    for change, count in (({}, 5), ({"max_tokens": 0}, 3)):
        found = (await lab.post(engine, COMPLETIONS, {**body, **change})).choice["logprobs"]
        assert found["tokens"][:3] == ["one", " two", " three"]
        assert len(found["tokens"]) == len(found["token_logprobs"]) == count
        assert [number is None for number in found["token_logprobs"]] == [
            True,
            *[False] * (count - 1),
        ]
        assert found["top_logprobs"][0] is None
        streamed = await lab.post(engine, COMPLETIONS, {**body, **change, "stream": True})
        pieces = [event["choices"][0]["logprobs"] for _, event in streamed.events]
        for key in found:
            assert [one for piece in pieces for one in piece[key]] == found[key]


async def test_those_of_a_chat(lab) -> None:
    engine = lab.start("prefill")
    body = {"messages": MESSAGES, "max_tokens": 4, "logprobs": True, "top_logprobs": 2}
    choice = (await lab.post(engine, CHAT, body)).choice
    content = choice["logprobs"]["content"]
    assert "".join(one["token"] for one in content) == choice["message"]["content"]
    for one in content:
        assert bytes(one["bytes"]).decode() == one["token"]
        assert next(top["token"] for top in one["top_logprobs"]) == one["token"]
        assert len(one["top_logprobs"]) == 2
    streamed = await lab.post(engine, CHAT, {**body, "stream": True})
    pieces = [event["choices"][0]["logprobs"] for _, event in streamed.events[1:]]
    assert [one for piece in pieces for one in piece["content"]] == content
    del body["top_logprobs"]
    bare = (await lab.post(engine, CHAT, body)).choice["logprobs"]["content"]
    assert [one["top_logprobs"] for one in bare] == [[]] * 4
    assert [one["logprob"] for one in bare] == [one["logprob"] for one in content]


async def test_the_end_of_sequence_has_one_too(lab) -> None:
    engine = lab.start("prefill")
    body = {"prompt": "<eos:2>", "logprobs": 1}
    assert (await lab.post(engine, COMPLETIONS, body)).choice["logprobs"]["tokens"][1] == "</s>"


async def test_those_of_the_prompt(lab) -> None:
    engine = lab.start("prefill")
    body = {"prompt": "one two three", "prompt_logprobs": 2}
    found = (await lab.post(engine, COMPLETIONS, body)).choice["prompt_logprobs"]
    assert (len(found), found[0]) == (3, None)
    assert [next(iter(one.values()))["decoded_token"] for one in found[1:]] == [" two", " three"]
    assert {len(one) for one in found[1:]} == {2}
    reply = await lab.post(engine, CHAT, {"messages": MESSAGES, "prompt_logprobs": 0})
    assert len(reply.json["prompt_logprobs"]) == reply.json["usage"]["prompt_tokens"]
    refused = await lab.post(engine, COMPLETIONS, {**body, "stream": True})
    assert (refused.status, refused.error["param"]) == (400, "prompt_logprobs")


async def test_chosen_tokens_take_the_place_of_the_likeliest(lab) -> None:
    engine = lab.start("prefill")
    body = {"messages": MESSAGES, "max_tokens": 1, "logprobs": True}
    body |= {"logprob_token_ids": [1001, 1002], "return_tokens_as_token_ids": True}
    (one,) = (await lab.post(engine, CHAT, body)).choice["logprobs"]["content"]
    assert [top["token"] for top in one["top_logprobs"]][1:] == ["token_id:1001", "token_id:1002"]
