"""The openai client, asynchronous: many at once, and streams that are cancelled."""

import asyncio

import openai
import pytest

from tests.clients.pool import ASKED, KEY, MODEL, Pool, chat_text, went_through_both
from tests.e2e.stack import until

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio, pytest.mark.usefixtures("by_pairs")]


def client_of(pool: Pool) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=pool.base, api_key=KEY, max_retries=0, timeout=20)


async def test_many_chats_at_once(pool: Pool) -> None:
    """Each gets its own answer."""
    async with client_of(pool) as client:

        async def ask(number: int) -> tuple[str | None, str]:
            messages = [{"role": "user", "content": f"Tell me about river {number}"}]
            answer = await client.chat.completions.create(
                model=MODEL, messages=messages, max_tokens=6
            )
            return answer.choices[0].message.content, chat_text(6, messages)

        answers = await asyncio.gather(*(ask(number) for number in range(24)))
    assert all(said == expected for said, expected in answers)


async def test_many_streams_at_once(pool: Pool) -> None:
    """Each is its own, through both engines."""
    async with client_of(pool) as client:

        async def ask(number: int) -> bool:
            messages = [{"role": "user", "content": f"Tell me about town {number}"}]
            create = client.chat.completions.with_streaming_response.create
            said = ""
            async with create(
                model=MODEL, messages=messages, max_tokens=12, stream=True
            ) as response:
                async for chunk in await response.parse():
                    said += chunk.choices[0].delta.content or ""
                return said == chat_text(12, messages) and went_through_both(response.headers)

        assert all(await asyncio.gather(*(ask(number) for number in range(12))))


async def test_a_cancelled_stream(pool: Pool) -> None:
    """A task that is cancelled in the middle of a stream leaves nothing in flight."""
    pool.pace(tokens_per_s=20)
    has_begun = asyncio.Event()

    async def listen(client: openai.AsyncOpenAI) -> None:
        stream = await client.chat.completions.create(
            model=MODEL, messages=ASKED, max_tokens=400, stream=True
        )
        async for _ in stream:
            has_begun.set()

    async with client_of(pool) as client:
        task = asyncio.create_task(listen(client))
        async with asyncio.timeout(10):
            await has_begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await asyncio.to_thread(until, pool.is_at_rest, "the engines hear of it")
