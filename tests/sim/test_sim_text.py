"""What a client asks of a text, whole and streamed: each is seen in the answer."""

import asyncio

import pytest

from sidecar.sim.model import expected_text

pytestmark = pytest.mark.asyncio
PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}


def text_of(choice) -> str:
    return choice["text"] if "text" in choice else choice["message"]["content"]


@pytest.mark.parametrize("api", ["completions", "chat"])
async def test_a_marked_prompt_ends_early_whole_and_streamed(lab, body_of, api) -> None:
    engine = lab.start("prefill")
    body = body_of(api, "say <eos:5> it", max_tokens=20)
    whole = (await lab.post(engine, PATHS[api], body)).json
    assert whole["choices"][0]["finish_reason"] == "stop"
    assert whole["usage"]["completion_tokens"] == 5
    assert len(text_of(whole["choices"][0]).split()) == 4
    options = {"stream": True, "stream_options": {"include_usage": True}}
    streamed = await lab.ask(engine, api, {**body, **options})
    assert streamed.text == text_of(whole["choices"][0]) == expected_text(api, body)
    assert streamed.events[-2]["choices"][0]["finish_reason"] == "stop"
    assert streamed.events[-1]["usage"]["completion_tokens"] == 5
    for change in ({"ignore_eos": True}, {"min_tokens": 20}):
        answer = await lab.post(engine, PATHS[api], {**body, **change})
        assert answer.choice["finish_reason"] == "length"


async def test_a_marker_in_a_text_part_counts_too(lab) -> None:
    engine = lab.start("prefill")
    parts = [{"type": "text", "text": "x <eos:2>"}]
    body = {"messages": [{"role": "user", "content": parts}]}
    assert (await lab.post(engine, PATHS["chat"], body)).json["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize("api", ["completions", "chat"])
async def test_stop_strings_cut_whole_and_streamed(lab, body_of, api) -> None:
    engine = lab.start("prefill")
    words = expected_text(api, body_of(api, "hello"), 8).split()
    stop = words[4][-2:] + " " + words[5][:2]
    for change in ({"stop": stop}, {"stop": ["zzz", stop]}):
        body = body_of(api, "hello", max_tokens=8, **change)
        whole = (await lab.post(engine, PATHS[api], body)).choice
        assert (whole["finish_reason"], whole["stop_reason"]) == ("stop", stop)
        assert text_of(whole) == " ".join(words[:5])[:-2]
        streamed = await lab.ask(engine, api, {**body, "stream": True})
        assert streamed.text == text_of(whole)
        assert streamed.events[-1]["choices"][0]["stop_reason"] == stop
        kept = (
            await lab.post(engine, PATHS[api], {**body, "include_stop_str_in_output": True})
        ).choice
        assert text_of(kept) == text_of(whole) + stop


async def test_a_stop_token_id_ends_it(lab) -> None:
    engine = lab.start("prefill")
    body = {"prompt": "hello", "max_tokens": 5, "return_token_ids": True}
    ids = (await lab.post(engine, PATHS["completions"], body)).choice["token_ids"]
    body["stop_token_ids"] = [7, ids[2]]
    choice = (await lab.post(engine, PATHS["completions"], body)).choice
    assert (choice["stop_reason"], choice["token_ids"]) == (ids[2], ids[:3])


async def test_token_ids_are_the_same_streamed(lab) -> None:
    engine = lab.start("prefill")
    body = {"prompt": "a b", "max_tokens": 4, "return_token_ids": True}
    whole = (await lab.post(engine, PATHS["completions"], body)).choice
    streamed = await lab.post(engine, PATHS["completions"], {**body, "stream": True})
    choices = [event["choices"][0] for _, event in streamed.events]
    assert [i for choice in choices for i in choice["token_ids"]] == whole["token_ids"]
    assert [choice["prompt_token_ids"] for choice in choices] == [
        whole["prompt_token_ids"], None, None, None,
    ]  # fmt: skip
    assert len(whole["prompt_token_ids"]) == 2


async def test_limits_are_vllms(lab) -> None:
    engine = lab.start("prefill", max_model_len=50)

    async def count(path: str, **body) -> int:
        reply = await lab.post(engine, path, body)
        return reply.json["usage"]["completion_tokens"]

    chat = {"messages": [{"role": "user", "content": "a b"}]}
    assert await count(PATHS["completions"], prompt="a") == 16
    assert await count(PATHS["completions"], prompt="a", max_tokens=None) == 16
    assert await count(PATHS["completions"], prompt="a", max_tokens=3) == 3
    assert await count(PATHS["chat"], **chat, max_tokens=3, max_completion_tokens=5) == 5
    assert await count(PATHS["chat"], **chat, max_completion_tokens=None) == 32
    # The rest of the context is less than was asked for: vLLM clamps.
    assert await count(PATHS["completions"], prompt="a " * 48, max_tokens=10) == 2


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        ({"temperature": 0}, False),
        ({"temperature": 0, "seed": 5}, False),
        ({"temperature": 0.7}, True),
        ({"user": "someone", "unheard_of": {"a": 1}, "best_of": 3}, False),
        ({"presence_penalty": 0.0}, False),
        ({"presence_penalty": 0.5}, True),
        ({"logit_bias": {"7": 1}}, True),
        ({"use_beam_search": True}, True),
        ({"structured_outputs": {"regex": "a+"}}, True),
    ],
)
async def test_what_changes_the_words(lab, change, differs) -> None:
    """Greedy answers are the oracle's; whatever samples otherwise is seen."""
    engine = lab.start("prefill")
    body = {"prompt": "hello", "max_tokens": 6}
    text = (await lab.post(engine, PATHS["completions"], {**body, **change})).choice["text"]
    assert (text != expected_text("completions", body)) is differs
    assert text == expected_text("completions", {**body, **change})


async def test_seed_temperature_and_top_p_each_change_a_sampled_text(lab) -> None:
    engine = lab.start("prefill")
    changes = [{}, {"seed": 2}, {"temperature": 0.9}, {"top_p": 0.5}]
    bodies = [{"prompt": "hello", "temperature": 1, "seed": 1, **change} for change in changes]
    texts = [(await lab.post(engine, PATHS["completions"], b)).choice["text"] for b in bodies * 2]
    assert len(set(texts)) == 4
    assert texts[:4] == texts[4:]


async def test_beams_are_n_choices_of_their_own(lab) -> None:
    engine = lab.start("prefill")
    body = {"prompt": "hello", "n": 2, "use_beam_search": True, "temperature": 0}
    beams = (await lab.post(engine, PATHS["completions"], body)).json["choices"]
    assert len({beam["text"] for beam in beams}) == 2
    refused = await lab.post(engine, PATHS["completions"], {**body, "stream": True})
    assert refused.status == 400
    assert "beam search" in refused.error["message"]


async def test_usage_may_come_with_every_event(lab) -> None:
    engine = lab.start("prefill")
    options = {"include_usage": True, "continuous_usage_stats": True}
    for api, body in (
        ("completions", {"prompt": "a b"}),
        ("chat", {"messages": [{"role": "user", "content": "a"}]}),
    ):
        body |= {"stream": True, "max_tokens": 3, "stream_options": options}
        events = (await lab.ask(engine, api, body)).events
        counts = [event["usage"]["completion_tokens"] for event in events]
        assert counts == ([1, 2, 3, 3] if api == "completions" else [0, 1, 2, 3, 3])


@pytest.mark.parametrize("prompt", ["a b", [5, 6], ["a b", "c"], [[5], [6, 7]], "x"])
@pytest.mark.parametrize("max_tokens", [0, 3])
async def test_echo_repeats_the_prompt(lab, prompt, max_tokens) -> None:
    """Whole and streamed alike, also where the prompt is all that is wanted."""
    engine = lab.start("prefill")
    body = {"prompt": prompt, "max_tokens": max_tokens, "echo": True}
    whole = (await lab.post(engine, PATHS["completions"], body)).json["choices"]
    streamed = await lab.post(engine, PATHS["completions"], {**body, "stream": True})
    texts = dict.fromkeys(range(len(whole)), "")
    for _, event in streamed.events:
        texts[event["choices"][0]["index"]] += event["choices"][0]["text"]
    assert list(texts.values()) == [choice["text"] for choice in whole]
    if isinstance(prompt, str):
        bare = expected_text("completions", {"prompt": prompt}, max_tokens or 1)
        assert whole[0]["text"] == prompt + (bare if max_tokens else "")


async def test_a_chats_echo_is_its_open_last_message(lab) -> None:
    engine = lab.start("prefill")
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "So "}]
    body = {"messages": messages, "max_tokens": 2, "echo": True}
    body |= {"add_generation_prompt": False, "continue_final_message": True}
    whole = await lab.post(engine, PATHS["chat"], body)
    assert whole.choice["message"]["content"].startswith("So ")
    assert (await lab.ask(engine, "chat", {**body, "stream": True})).text == text_of(whole.choice)


async def test_a_prefill_leg_whose_first_token_ends_it_hands_nothing_over(lab, body_of) -> None:
    """Unless min_tokens or ignore_eos forbid it, as a router asks for."""
    prefill = lab.start("prefill")
    body = body_of("completions", "<eos:1> hello")
    leg = {"max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True, "transfer_id": "t"}}
    answer = (await lab.post(prefill, PATHS["completions"], {**body, **leg})).json
    assert answer["kv_transfer_params"] is None
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert (await lab.state(prefill))["held_blocks"] == 0
    for forbids in ({"min_tokens": 1}, {"ignore_eos": True}):
        leg["kv_transfer_params"]["transfer_id"] = str(forbids)
        answer = (await lab.post(prefill, PATHS["completions"], {**body, **leg, **forbids})).json
        assert answer["kv_transfer_params"]["transfer_id"] == str(forbids)


@pytest.mark.parametrize("change", [{}, {"stop": "never"}])
async def test_a_stream_ends_with_an_error_when_its_engine_dies(lab, change) -> None:
    """Of whichever way its events are made."""
    engine = lab.start("prefill", mode="WRITE", tokens_per_s=20)
    body = {"prompt": "hello", "stream": True, "max_tokens": 1000, **change}
    stream = asyncio.create_task(lab.post(engine, PATHS["completions"], body))
    await lab.until(engine, lambda state: state["tokens_sent"] >= 2)
    kill = {"prompt": "a", "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
    assert (await lab.post(engine, PATHS["completions"], kill)).status == 500
    reply = await stream
    assert reply.is_done
    assert reply.events[-1][1]["error"]["type"] == "InternalServerError"
    assert len(reply.events) < 1000
