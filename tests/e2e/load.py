"""A bounded load of streamed or whole completions, each answer checked against the model."""

import asyncio
from dataclasses import dataclass, field

import aiohttp
import msgspec

from sidecar.sim.model import expected_text


@dataclass
class Answer:
    """One request's end. `status` 0: the connection failed; `text` is what had come until then."""

    status: int = 0
    text: str = ""
    is_complete: bool = False
    is_right: bool = False
    error: str = ""
    headers: dict[str, str] = field(default_factory=dict)


async def stream(
    session: aiohttp.ClientSession,
    url: str,
    prompt: str,
    tokens: int,
    answer: Answer | None = None,
) -> Answer:
    """One streamed completion; complete only with `[DONE]`. `answer` can be watched meanwhile."""
    answer = answer or Answer()
    body = {"model": "sim-model", "prompt": prompt, "max_tokens": tokens, "stream": True}
    try:
        async with session.post(f"{url}/v1/completions", json=body) as response:
            answer.status, answer.headers = response.status, dict(response.headers)
            if response.status != 200:
                answer.text = await response.text()
                return answer
            async for line in response.content:
                data = line.removeprefix(b"data: ").strip()
                if data == b"[DONE]":
                    answer.is_complete = True
                elif line.startswith(b"data: "):
                    for choice in msgspec.json.decode(data).get("choices", []):
                        answer.text += choice["text"]
    except (aiohttp.ClientError, TimeoutError) as error:
        answer.error = repr(error)
    answer.is_right = answer.is_complete and answer.text == expected_text(
        "completions", {"prompt": prompt}, tokens
    )
    return answer


async def run(url: str, count: int, concurrency: int, tokens: int = 3) -> list[Answer]:
    """`count` streamed completions with distinct prompts, so many at a time."""
    gate = asyncio.Semaphore(concurrency)
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:

        async def one(i: int) -> Answer:
            async with gate:
                return await stream(session, url, f"request {i} of {count}", tokens)

        return list(await asyncio.gather(*(one(i) for i in range(count))))


def run_right(url: str, count: int, concurrency: int, tokens: int = 3) -> None:
    """Run it; AssertionError with the first answers that are not complete and right."""
    answers = asyncio.run(run(url, count, concurrency, tokens))
    wrong = [answer for answer in answers if not answer.is_right]
    assert not wrong, f"{len(wrong)} of {count} answers are wrong: {wrong[:3]}"
