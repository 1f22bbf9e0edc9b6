"""All rows of tests/requests/features.py as requests to engines: whole, and streamed where both are
possible."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from tests.engines.vllm_engine import MODEL
from tests.requests.answer import Answer, ask
from tests.requests.feature import RESPONSES, Feature
from tests.requests.features import FEATURES

AT_ONCE = 8
TIMEOUT_S = 120.0
"""seen: 20 s for the answers as long as the context, beside seven others"""


@dataclass(frozen=True)
class Row:
    feature: Feature
    is_streamed: bool

    @property
    def name(self) -> str:
        return self.feature.test_id + ", streamed" * self.is_streamed

    def body(self, salt: str) -> dict[str, Any] | None:
        """With a salt, what an engine has cached of the same row with another salt is nothing to
        it. Only a response says how much was cached."""
        if self.feature.method == "GET":
            return None
        body = {"model": MODEL} | self.feature.body
        if self.is_streamed:
            body["stream"] = True
        if salt and self.feature.path == RESPONSES:
            body["cache_salt"] = f"{salt}, {self.name}"
        return body


ROWS = [
    Row(feature, is_streamed)
    for feature in FEATURES
    for is_streamed in ([False, True] if feature.streams else [False])
    if not (is_streamed and "stream" in feature.body)
]


def answers(
    url: str, rows: Sequence[Row], at_once: int = AT_ONCE, salt: str = ""
) -> dict[str, Answer]:
    """What is answered to each row, by its name."""
    requests = {row.name: (row.feature.path, row.body(salt)) for row in rows}
    return answers_to(url, requests, at_once)


def answers_to(
    url: str, requests: Mapping[str, tuple[str, dict[str, Any] | None]], at_once: int = AT_ONCE
) -> dict[str, Answer]:
    """What is answered to each request, its path and body, by its name, `at_once` side by side.
    Status 0: nothing in time, or the connection broke. Without a body it is a GET."""
    return asyncio.run(_ask_all(url, requests, at_once))


async def _ask_all(
    url: str, requests: Mapping[str, tuple[str, dict[str, Any] | None]], at_once: int
) -> dict[str, Answer]:
    gate = asyncio.Semaphore(at_once)
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:

        async def one(name: str) -> tuple[str, Answer]:
            path, body = requests[name]
            method, data = ("GET", None) if body is None else ("POST", json.dumps(body).encode())
            async with gate:
                try:
                    answer = await ask(session, method, url + path, data)
                except (TimeoutError, aiohttp.ClientError) as error:
                    answer = Answer(0, "", repr(error).encode(), {})
            return name, answer

        return dict(await asyncio.gather(*map(one, requests)))
