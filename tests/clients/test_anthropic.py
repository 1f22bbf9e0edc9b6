"""The anthropic client, on `/v1/messages`."""

from collections.abc import Iterator

import pytest

from tests.clients.pool import ASKED, KEY, MODEL, Pool, chat_text, went_through_both
from tests.e2e.stack import until

anthropic = pytest.importorskip("anthropic", reason="the extra `clients` is not installed")
pytestmark = pytest.mark.e2e

TOOL = {
    "name": "weather",
    "input_schema": {
        "type": "object",
        "properties": {"town": {"type": "string"}},
        "required": ["town"],
    },
}


@pytest.fixture
def client(pool: Pool) -> "Iterator[anthropic.Anthropic]":
    with anthropic.Anthropic(base_url=pool.url, api_key=KEY, max_retries=0, timeout=20) as client:
        yield client


@pytest.mark.usefixtures("by_pairs")
def test_a_message(client: "anthropic.Anthropic") -> None:
    """Its text is the model's, through both engines."""
    raw = client.messages.with_raw_response.create(model=MODEL, messages=ASKED, max_tokens=7)
    answer = raw.parse()
    assert answer.content[0].text == chat_text(7)
    assert (answer.stop_reason, answer.usage.output_tokens) == ("max_tokens", 7)
    assert went_through_both(raw.headers)


@pytest.mark.usefixtures("by_pairs")
def test_a_streamed_message(client: "anthropic.Anthropic") -> None:
    """The client's own accumulation of events is the message."""
    with client.messages.stream(model=MODEL, messages=ASKED, max_tokens=9) as stream:
        said = "".join(stream.text_stream)
        message = stream.get_final_message()
    assert said == message.content[0].text == chat_text(9)


@pytest.mark.usefixtures("by_pairs")
def test_a_tool_is_called(client: "anthropic.Anthropic") -> None:
    """With an input of its schema."""
    answer = client.messages.create(
        model=MODEL,
        messages=ASKED,
        tools=[TOOL],
        tool_choice={"type": "any"},
        max_tokens=200,
    )
    assert answer.stop_reason == "tool_use"
    assert set(answer.content[0].input) == {"town"}


def test_tokens_are_counted(client: "anthropic.Anthropic") -> None:
    """By one instance."""
    assert client.messages.count_tokens(model=MODEL, messages=ASKED).input_tokens > 1


def test_its_errors(client: "anthropic.Anthropic") -> None:
    """An engine's refusals are the client's own classes."""
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(model="another", messages=ASKED, max_tokens=5)
    with pytest.raises(anthropic.BadRequestError):
        client.messages.create(model=MODEL, messages=ASKED, max_tokens=-1)


@pytest.mark.usefixtures("by_pairs")
def test_a_stream_that_is_left(pool: Pool, client: "anthropic.Anthropic") -> None:
    """Closed in the middle, nothing stays in flight."""
    pool.pace(tokens_per_s=20)
    with client.messages.stream(model=MODEL, messages=ASKED, max_tokens=400) as stream:
        next(iter(stream.text_stream))
    until(pool.is_at_rest, "the engines hear that their client left")
