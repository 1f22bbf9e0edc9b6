"""The same request to one engine alone and through the pool: the answers are equal."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from tests.e2e.stack import Engine, Stack, until
from tests.ports import free_port
from tests.requests.answer import Answer, ask
from tests.requests.feature import MODEL, Feature, Served
from tests.requests.features import FEATURES

pytestmark = pytest.mark.e2e

ROLES = {
    Served.PAIR: ("prefill", "decode"),
    Served.ALONE: ("prefill",),
    Served.SINGLE: ("prefill",),
}


class Pool:
    """A pool of one transfer mode, and an engine that belongs to no pool."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.stack = Stack()
        try:
            self.stack.start()
            self.prefill, self.decode = self.stack.fleet([2], [2], mode)
            # It registers where nobody listens.
            nowhere = f"127.0.0.1:{free_port()}"
            self.alone = Engine("prefill", nowhere, mode=mode, dp_size=2)
            self.stack.engines.append(self.alone)
        except BaseException:
            self.stack.close()
            raise

    def check_rest(self) -> None:
        """After all of it every slot is free, and no engine holds a block."""
        until(lambda: not any(self.stack.in_flight().values()), "every slot is free again")
        engines = [*self.prefill, *self.decode]
        held = "held_blocks"
        until(lambda: not any(e.state()[held] for e in engines), "no engine holds a block")


@pytest.fixture(scope="module")
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    pool = Pool(request.param)
    try:
        yield pool
        pool.check_rest()
    finally:
        pool.stack.close()


def both(pool: Pool, method: str, path: str, body: dict[str, Any] | None) -> tuple[Answer, Answer]:
    """(of the engine alone, through the pool)"""

    async def run() -> tuple[Answer, Answer]:
        data = None if body is None else json.dumps(body).encode()
        timeout = aiohttp.ClientTimeout(total=30)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            urls = (pool.alone.url + path, pool.stack.url + path)
            alone, through = [await ask(session, method, url, data) for url in urls]
            return alone, through

    return asyncio.run(run())


CASES = [
    pytest.param(
        mode, feature, is_streamed, id=f"{mode} {feature.test_id}{' (streamed)' * is_streamed}"
    )
    for mode in ("READ", "WRITE")
    for feature in FEATURES
    if mode in feature.modes
    for is_streamed in ([False, True] if feature.streams else [False])
    if not (is_streamed and "stream" in feature.body)
]


@pytest.mark.parametrize(
    ("pool", "feature", "is_streamed"), CASES, indirect=["pool"], scope="module"
)
def test_a_feature_is_served_as_one_engine_serves_it(
    pool: Pool, feature: Feature, is_streamed: bool
) -> None:
    """Status, content type and all that is said; and it went where the table says."""
    body = None if feature.method == "GET" else {"model": MODEL} | feature.body
    if body is not None and is_streamed:
        body["stream"] = True
    alone, through = both(pool, feature.method, feature.path, body)
    assert alone.status == feature.status, alone.body[:500]
    assert (through.status, through.content_type) == (alone.status, alone.content_type)
    assert through.said == alone.said
    if feature.served is Served.PREFILL:
        check_refused_by_either(pool, through)
    else:
        assert through.served_by == ROLES[feature.served]


def check_refused_by_either(pool: Pool, through: Answer) -> None:
    """In READ decode is not asked. In WRITE both are, and who is first is the client's answer:
    only prefill's needs a word of ours."""
    reason = through.headers.get("x-pd-error")
    if pool.mode == "READ":
        assert (through.served_by, reason) == (("prefill",), "prefill_rejected")
    else:
        assert through.served_by == ("prefill", "decode")
        assert reason in ("prefill_rejected", None)
