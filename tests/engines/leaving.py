"""Clients that leave: after a time, or after so many chunks of an answer."""

import asyncio
import contextlib
import random
from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp

from tests.engines.questions import Question, Questions


@dataclass(frozen=True)
class Leaver:
    question: Question
    after_s: float = 30.0
    """leaves then at the latest"""
    after_chunks: int = 1_000_000


def leave(url: str, leavers: Sequence[Leaver]) -> None:
    """Ask all at once; each connection is closed when its client leaves."""
    asyncio.run(_leave(url, leavers))


def leave_at_any_moment(url: str) -> None:
    """Forty clients with little patience, eight at a time."""
    asked, draw = Questions("any moment"), random.Random(5)
    for _ in range(5):
        questions = [asked.text(draw.randrange(20, 300), 32, is_streamed=True) for _ in range(8)]
        leave(url, [Leaver(question, draw.uniform(0, 0.4)) for question in questions])


async def _leave(url: str, leavers: Sequence[Leaver]) -> None:
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=connector) as session:
        await asyncio.gather(*(_one(session, url, leaver) for leaver in leavers))


async def _one(session: aiohttp.ClientSession, url: str, leaver: Leaver) -> None:
    question = leaver.question
    with contextlib.suppress(TimeoutError):
        async with (
            asyncio.timeout(leaver.after_s),
            session.post(url + question.path, json=question.body) as answer,
        ):
            chunks = 0
            async for _ in answer.content.iter_any():
                chunks += 1
                if chunks >= leaver.after_chunks:
                    answer.close()
                    return
