"""LangChain's ChatOpenAI."""

import pydantic
import pytest

from tests.clients.pool import KEY, MODEL, QUESTION, Pool, chat_text

langchain_openai = pytest.importorskip(
    "langchain_openai", reason="the extra `clients` is not installed"
)
pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("by_pairs")]


class Weather(pydantic.BaseModel):
    """The weather of a town."""

    town: str
    days: int


@pytest.fixture
def chat(pool: Pool) -> "langchain_openai.ChatOpenAI":
    return langchain_openai.ChatOpenAI(
        base_url=pool.base, api_key=KEY, model=MODEL, max_tokens=8, max_retries=0, timeout=20
    )


def test_invoke(chat: "langchain_openai.ChatOpenAI") -> None:
    """A question is a chat of one message."""
    answer = chat.invoke(QUESTION)
    assert answer.content == chat_text(8)
    assert answer.usage_metadata["output_tokens"] == 8


def test_stream(chat: "langchain_openai.ChatOpenAI") -> None:
    """Chunks that add up."""
    assert "".join(str(chunk.content) for chunk in chat.stream(QUESTION)) == chat_text(8)


@pytest.mark.asyncio
async def test_astream(chat: "langchain_openai.ChatOpenAI") -> None:
    """The same, asynchronous."""
    assert "".join([str(one.content) async for one in chat.astream(QUESTION)]) == chat_text(8)


def test_batch(chat: "langchain_openai.ChatOpenAI") -> None:
    """Several chats at once, each with its own answer."""
    questions = [f"Tell me about town {number}" for number in range(6)]
    expected = [chat_text(8, [{"role": "user", "content": one}]) for one in questions]
    assert [answer.content for answer in chat.batch(questions)] == expected


def test_a_tool(chat: "langchain_openai.ChatOpenAI") -> None:
    """Bound and forced, it is called with arguments of its schema."""
    bound = chat.bind_tools([Weather], tool_choice="any").bind(max_tokens=200)
    (call,) = bound.invoke(QUESTION).tool_calls
    assert call["name"] == "Weather"
    assert set(call["args"]) == {"town", "days"}


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_a_structured_output(chat: "langchain_openai.ChatOpenAI", method: str) -> None:
    """An object of the class that was asked for."""
    asking = chat.model_copy(update={"max_tokens": 200}).with_structured_output(
        Weather, method=method
    )
    assert isinstance(asking.invoke(QUESTION), Weather)
