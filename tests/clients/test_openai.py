"""The openai client, synchronous: what it sends, what it makes of the answers."""

import json
from collections.abc import Iterator

import openai
import pydantic
import pytest

from tests.clients.pool import (
    ASKED,
    KEY,
    MODEL,
    QUESTION,
    Pool,
    chat_text,
    completion_text,
    completion_texts,
    went_through_both,
)
from tests.e2e.stack import until

pytestmark = pytest.mark.e2e

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"town": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["town", "days"],
        },
    },
}


class River(pydantic.BaseModel):
    name: str
    is_long: bool


@pytest.fixture
def client(pool: Pool) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=pool.base, api_key=KEY, max_retries=0, timeout=20) as client:
        yield client


@pytest.mark.usefixtures("by_pairs")
def test_a_chat(client: openai.OpenAI) -> None:
    """The text is the model's, and usage counts it."""
    answer = client.chat.completions.create(model=MODEL, messages=ASKED, max_tokens=7)
    assert answer.choices[0].message.content == chat_text(7)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 7


@pytest.mark.usefixtures("by_pairs")
def test_a_streamed_chat(client: openai.OpenAI) -> None:
    """One chunk a token, and the usage that was asked for at the end."""
    chunks = list(
        client.chat.completions.create(
            model=MODEL,
            messages=ASKED,
            max_completion_tokens=9,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    said = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices]
    assert "".join(part or "" for part in said) == chat_text(9)
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 9


@pytest.mark.usefixtures("by_pairs")
def test_a_completion(client: openai.OpenAI) -> None:
    """Without `max_tokens` too: the default is the engine's, and not ours to change."""
    answer = client.completions.create(model=MODEL, prompt=QUESTION)
    assert answer.choices[0].text == completion_text(QUESTION)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 16


@pytest.mark.usefixtures("by_pairs")
def test_a_streamed_completion(client: openai.OpenAI) -> None:
    """Chunks that make up the text."""
    chunks = client.completions.create(model=MODEL, prompt=QUESTION, max_tokens=6, stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == completion_text(QUESTION, 6)


def test_several_prompts_and_choices(client: openai.OpenAI) -> None:
    """All choices, in order, though one KV transfer cannot carry them."""
    prompts = [QUESTION, "Tell me about towns"]
    answer = client.completions.create(
        model=MODEL, prompt=prompts, n=2, max_tokens=4, temperature=1, seed=3
    )
    wanted = completion_texts(prompts, n=2, max_tokens=4, temperature=1, seed=3)
    assert [choice.text for choice in answer.choices] == list(wanted)


def test_the_models(client: openai.OpenAI) -> None:
    """Listed by the sidecar."""
    assert [model.id for model in client.models.list()] == [MODEL]


@pytest.mark.usefixtures("by_pairs")
def test_a_response(client: openai.OpenAI) -> None:
    """The Responses API, whole."""
    answer = client.responses.create(model=MODEL, input=QUESTION, max_output_tokens=8, store=False)
    assert answer.output_text == chat_text(8)


@pytest.mark.usefixtures("by_pairs")
def test_a_streamed_response(client: openai.OpenAI) -> None:
    """The Responses API as events, from its creation to its end."""
    events = list(
        client.responses.create(
            model=MODEL, input=QUESTION, max_output_tokens=8, store=False, stream=True
        )
    )
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == chat_text(8)
    assert events[0].type == "response.created"
    assert events[-1].type in ("response.completed", "response.incomplete")


@pytest.mark.usefixtures("by_pairs")
def test_a_tool_is_called(client: openai.OpenAI) -> None:
    """Its arguments are JSON of the tool's schema, streamed as whole."""
    whole = client.chat.completions.create(
        model=MODEL, messages=ASKED, tools=[WEATHER], tool_choice="required", max_tokens=200
    )
    call = whole.choices[0].message.tool_calls[0].function
    assert call.name == "weather"
    assert set(json.loads(call.arguments)) == {"town", "days"}
    chunks = client.chat.completions.create(
        model=MODEL,
        messages=ASKED,
        tools=[WEATHER],
        tool_choice="required",
        max_tokens=200,
        stream=True,
    )
    parts = [c.choices[0].delta.tool_calls for c in chunks if c.choices]
    streamed = "".join(p[0].function.arguments or "" for p in parts if p)
    assert streamed == call.arguments


@pytest.mark.usefixtures("by_pairs")
def test_a_structured_output(client: openai.OpenAI) -> None:
    """The client's own parser makes an object of its schema's answer."""
    answer = client.chat.completions.parse(
        model=MODEL, messages=ASKED, response_format=River, max_tokens=200
    )
    assert isinstance(answer.choices[0].message.parsed, River)


@pytest.mark.usefixtures("by_pairs")
def test_logprobs(client: openai.OpenAI) -> None:
    """One entry for each token, with the alternatives asked for."""
    answer = client.chat.completions.create(
        model=MODEL, messages=ASKED, max_tokens=5, logprobs=True, top_logprobs=2
    )
    entries = answer.choices[0].logprobs.content
    assert "".join(entry.token for entry in entries) == chat_text(5)
    assert all(len(entry.top_logprobs) == 2 for entry in entries)


def test_embeddings(client: openai.OpenAI) -> None:
    """One vector for each input, the same for the same text."""
    answer = client.embeddings.create(model=MODEL, input=["a", "b", "a"])
    first, second, third = (one.embedding for one in answer.data)
    assert first == third != second


@pytest.mark.usefixtures("by_pairs")
def test_raw_headers(client: openai.OpenAI) -> None:
    """The receipt and the request id reach who asks for them."""
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL, messages=ASKED, extra_headers={"x-request-id": "mine-1"}
    )
    assert went_through_both(raw.headers)
    assert raw.headers["x-request-id"] == "mine-1"
    assert raw.parse()._request_id == "mine-1"


def test_an_unknown_model(client: openai.OpenAI) -> None:
    """It is the client's NotFoundError, with the words of an engine."""
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="another", messages=ASKED)
    assert "`another` does not exist" in caught.value.message


def test_a_bad_body(client: openai.OpenAI) -> None:
    """The engine's own refusal, as the client's BadRequestError with its field."""
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=ASKED, temperature=5)
    assert "temperature" in caught.value.message


def test_what_is_not_served(client: openai.OpenAI) -> None:
    """A path of OpenAI's that is none of vLLM's is NotFoundError too."""
    with pytest.raises(openai.NotFoundError):
        client.files.list()


@pytest.mark.usefixtures("by_pairs")
def test_a_time_limit_of_the_client(pool: Pool, client: openai.OpenAI) -> None:
    """It gives up, and so do the engines."""
    pool.pace(ttft_ms=30_000)
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=2).chat.completions.create(model=MODEL, messages=ASKED)
    until(pool.is_at_rest, "the engines hear that their client left")


@pytest.mark.usefixtures("by_pairs")
def test_a_stream_that_is_left(pool: Pool, client: openai.OpenAI) -> None:
    """Closed in the middle, nothing stays in flight."""
    pool.pace(tokens_per_s=20)
    stream = client.chat.completions.create(
        model=MODEL, messages=ASKED, max_tokens=400, stream=True
    )
    with stream:
        for _, _chunk in zip(range(3), stream, strict=False):
            pass
    until(pool.is_at_rest, "the engines hear that their client left")
