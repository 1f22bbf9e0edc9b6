"""The load: asks questions, at a bounded rate and so many at a time, and has each end judged."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress

import aiohttp

from tests.chaos.outages import Outages
from tests.chaos.question import Question, make_question
from tests.chaos.tally import Tally
from tests.chaos.verdict import Heard, judge

HANG_S = 25.0
"""Above all limits of the configuration together: prefill 5, decode 8, and a stop of 6."""
IN_FLIGHT = 48
PER_S = 40.0


class Traffic:
    """One load against one edge. `is_calm`: nothing is broken meanwhile, nothing is excused."""

    def __init__(
        self, url: str, seed: str, tally: Tally, outages: Outages, *, is_calm: bool
    ) -> None:
        self._url = url
        self._seed = seed
        self._tally = tally
        self._outages = outages
        self._is_calm = is_calm
        self._room = asyncio.Semaphore(IN_FLIGHT)
        self.in_flight = 0

    async def run(self, is_over: Callable[[], bool]) -> int:
        """Ask until `is_over`, then wait for every end; returns how many were asked."""
        timeout = aiohttp.ClientTimeout(total=None)  # ours is HANG_S, by its own clock
        connector = aiohttp.TCPConnector(limit=0)
        number = 0
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
            asyncio.TaskGroup() as group,
        ):
            due = time.monotonic()
            while not is_over():
                await self._room.acquire()
                group.create_task(self._ask(session, make_question(self._seed, number)))
                number += 1
                # What could not be asked in time is not caught up with.
                due = max(due + 1 / PER_S, time.monotonic() - 1 / PER_S)
                await asyncio.sleep(max(0.0, due - time.monotonic()))
        return number

    async def _ask(self, session: aiohttp.ClientSession, question: Question) -> None:
        self.in_flight += 1
        started = time.monotonic()
        try:
            heard = await self._hear(session, question)
        finally:
            self.in_flight -= 1
            self._room.release()
        ended = time.monotonic()
        verdict = judge(
            question,
            heard,
            is_edge_down=self._outages.touch(started, ended),
            is_calm=self._is_calm,
        )
        self._tally.add(question, heard, verdict, ended - started)

    async def _hear(self, session: aiohttp.ClientSession, question: Question) -> Heard:
        """The request to its end: its own, the client's leaving, or the limit."""
        exchange = _Exchange(session, self._url, question)
        leave = question.leave
        is_timed = leave is not None and leave.phase != "bytes"
        limit_s = leave.after if leave is not None and is_timed else HANG_S
        task = asyncio.create_task(exchange.run())
        _, running = await asyncio.wait([task], timeout=limit_s)
        if running:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            return exchange.heard("left" if is_timed else "hang")
        end, fault = task.result()
        return exchange.heard(end, fault)


class _Exchange:
    """One request on the wire, and what has come of it so far."""

    def __init__(self, session: aiohttp.ClientSession, url: str, question: Question) -> None:
        self._session = session
        self._url = url
        self._question = question
        self._status = 0
        self._headers: dict[str, str] = {}
        self._body = bytearray()

    def heard(self, end: str, fault: str = "") -> Heard:
        return Heard(end, self._status, self._headers, bytes(self._body), fault)  # type: ignore[arg-type]

    async def run(self) -> tuple[str, str]:
        """How it ended, and the fault's words."""
        question = self._question
        headers = {"x-request-id": question.name}
        if question.method == "POST":
            headers["content-type"] = "application/json"
        if question.encoding is not None:
            headers["content-encoding"] = question.encoding
        is_half = question.leave is not None and question.leave.phase == "upload"
        try:
            async with self._session.request(
                question.method,
                self._url + question.path,
                data=_half(question.body) if is_half else question.body or None,
                headers=headers,
                skip_auto_headers=("content-type",),
            ) as response:
                self._status = response.status
                self._headers = {key.lower(): value for key, value in response.headers.items()}
                return await self._read(response), ""
        except (aiohttp.ClientError, OSError) as error:
            return ("cut" if self._status else "none"), repr(error)

    async def _read(self, response: aiohttp.ClientResponse) -> str:
        leave = self._question.leave
        async for data in response.content.iter_any():
            self._body += data
            if leave is not None and leave.phase == "bytes" and len(self._body) >= leave.after:
                response.close()
                return "left"
        return "clean"


async def _half(body: bytes) -> AsyncIterator[bytes]:
    """Half of the body, and then nothing: only the client's leaving ends it."""
    yield body[: len(body) // 2]
    await asyncio.get_running_loop().create_future()
