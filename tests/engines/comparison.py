"""The same requests to the prefill engine alone and through the router: the answers are equal."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from tests.engines.merged import differences, merged
from tests.engines.questions import Question
from tests.requests.answer import Answer, ask

TIMEOUT_S = 60.0
PAIR = ("prefill", "decode")


class Differs(AssertionError):
    """What the router answered is not what the engine says."""


@dataclass(frozen=True)
class Compared:
    """How many requests were compared, and what they were made of."""

    requests: int
    prompt_tokens: int


def compare(
    alone_url: str,
    router_url: str,
    questions: Sequence[Question],
    at_once: int = 1,
    timeout_s: float = TIMEOUT_S,
) -> Compared:
    """Ask all of both, `at_once` of them side by side. Raises Differs with what differs; an answer
    that does not come in time does."""
    pairs = asyncio.run(_ask_both(alone_url, router_url, questions, at_once, timeout_s))
    checked = [
        check(question.name, alone, through)
        for question, (alone, through) in zip(questions, pairs, strict=True)
    ]
    differing = [faults for faults in checked if faults]
    if differing:
        lines = [fault for faults in differing for fault in faults][:20]
        raise Differs(f"{len(differing)} of {len(pairs)} requests differ:\n" + "\n".join(lines))
    tokens = sum(_prompt_tokens(alone) for alone, _ in pairs)
    return Compared(len(pairs), tokens)


def check(name: str, alone: Answer, through: Answer) -> list[str]:
    """Where the answers differ, and where the second did not come from a pair."""
    faults = [] if alone.status == 200 else [f"{name}: alone {alone.status} {alone.body[:200]!r}"]
    if (through.status, through.content_type) != (alone.status, alone.content_type):
        faults.append(f"{name}: through the router {through.status} {through.body[:200]!r}")
    elif through.served_by != PAIR:
        faults.append(f"{name}: served by {through.served_by}")
    else:
        told = differences(_told(alone), _told(through))
        faults += [f"{name}: {difference}" for difference in told]
    return faults


def _told(answer: Answer) -> Any:
    """But for how much of the prompt an engine had in its cache, which is not of the answer."""
    told = merged(answer)
    usage = told.get("usage") if isinstance(told, dict) else None
    if usage:
        usage.pop("prompt_tokens_details", None)
    return told


def _prompt_tokens(answer: Answer) -> int:
    return int(merged(answer)["usage"]["prompt_tokens"])


async def _ask_both(
    alone_url: str, router_url: str, questions: Sequence[Question], at_once: int, timeout_s: float
) -> list[tuple[Answer, Answer]]:
    """The router first: the engine alone would leave what it computed in prefill's cache, so that
    prefill had nothing to do."""
    gate = asyncio.Semaphore(at_once)
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:

        async def all_of(url: str) -> list[Answer]:
            async def one(question: Question) -> Answer:
                async with gate:
                    data = json.dumps(question.body).encode()
                    try:
                        return await ask(session, "POST", url + question.path, data)
                    except (TimeoutError, aiohttp.ClientError) as error:
                        return Answer(0, "", repr(error).encode(), {})

            return await asyncio.gather(*map(one, questions))

        through = await all_of(router_url)
        alone = await all_of(alone_url)
    return list(zip(alone, through, strict=True))
