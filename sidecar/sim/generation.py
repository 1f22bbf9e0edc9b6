"""One admitted request: obtains its KV, then writes its tokens at the engine's pace."""

import asyncio
from collections.abc import Iterator
from contextlib import AbstractContextManager
from itertools import islice
from os import urandom
from typing import Any

from aiohttp import web

from sidecar.sim.answer import Answer
from sidecar.sim.api_error import ApiError
from sidecar.sim.choice_run import ChoiceRun
from sidecar.sim.connection import drop, flush, reset
from sidecar.sim.connector import Connector, PrefillLeg
from sidecar.sim.core import Core
from sidecar.sim.faults import Fault, Kind
from sidecar.sim.model import block_contents, generate, run_choice
from sidecar.sim.model_request import ModelRequest
from sidecar.sim.prompt import Prompt

_STREAM_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8"}
Source = tuple[Prompt, tuple[bytes, ...], int]
"""What a choice is made of: its prompt, the blocks at hand, its number."""
_Parts = tuple[bytes, bytes, bytes, Iterator[str]]


class Generation:
    """One request on one rank, answered whole or streamed, with the fault it suffers if any."""

    def __init__(
        self,
        core: Core,
        connector: Connector,
        asked: ModelRequest,
        rank: int,
        request_id: str,
        answer: Answer,
        fault: Fault | None,
    ) -> None:
        self._core = core
        self._connector = connector
        self._asked = asked
        self._rank = rank
        self._traffic = core.traffic[rank]
        self._request_id = request_id
        self._answer = answer
        self._fault = fault
        is_broken_off = fault is not None and fault.kind in ("stall", "cut")
        self._break_at = fault.after_tokens if fault and is_broken_off else -1

    async def answer_whole(self, request: web.Request) -> web.Response:
        """The answer in one piece; raises ApiError."""
        with self._in_engine():
            return await self._whole(request)

    async def answer_streamed(self, request: web.Request) -> web.StreamResponse:
        """The answer as events; its headers go before the first token, as vLLM's do."""
        with self._in_engine():
            return await self._streamed(request)

    def _in_engine(self) -> AbstractContextManager[None]:
        prompts, choices = self._asked.prompts, self._asked.sampling.n
        blocks = sum(len(block_contents(prompt)) for prompt in prompts)
        return self._traffic.request(len(prompts) * choices, blocks)

    async def _whole(self, request: web.Request) -> web.Response:
        core = self._core
        leg = self._open_prefill()
        runs = [self._finished_run(source) for source in await self._start()]
        longest = max(run.count for run in runs)
        if longest > 1 and core.pace.tokens_per_s:
            await asyncio.sleep((longest - 1) / core.pace.tokens_per_s)
        if self._break_at >= 0:
            await self._break_off(request)
        parameters = await self._finish_prefill(leg, runs)
        core.check_alive()
        self._note_tokens(sum(run.count for run in runs))
        body = self._answer.whole(runs, parameters)
        if self._has_fault("reset"):
            await self._reset_after_headers(request, len(body))
        return web.Response(body=body, content_type="application/json")

    async def _streamed(self, request: web.Request) -> web.StreamResponse:
        leg = self._open_prefill()
        response = web.StreamResponse(headers=_STREAM_HEADERS)
        await response.prepare(request)
        if self._has_fault("reset"):
            await flush(request)
            raise reset(request)
        try:
            sources = await self._start()
            for event in self._answer.opening():
                await response.write(event)
            if parts := self._parts(sources):
                await self._write_words(request, response, parts)
                runs, count = [], self._asked.sampling.max_tokens * len(sources)
            else:
                runs = [self._run(source) for source in sources]
                await self._write_steps(request, response, runs)
                count = sum(run.count for run in runs)
            await self._finish_prefill(leg, runs)
            for event in self._answer.closing(runs, count):
                await response.write(event)
        except ApiError as error:
            # The status line has gone.
            failure = self._answer.failure(error)
            if failure is None:
                await flush(request)
                raise drop(request) from None
            await response.write(failure)
        await response.write_eof()
        return response

    def _is_fast(self) -> bool:
        return self._asked.is_word_an_event and not self._has_fault("eos")

    def _parts(self, sources: list[Source]) -> list[_Parts]:
        """What each choice's events are made of, if a word is an event; else nothing."""
        if not self._is_fast():
            return []
        key = self._asked.sampling.key
        return [
            (*parts, generate(*source, key))
            for index, source in enumerate(sources)
            if (parts := self._answer.token_parts(index)) is not None
        ]

    def _run(self, source: Source) -> ChoiceRun:
        if self._has_fault("eos"):
            return ChoiceRun(iter(()), self._asked.sampling, None)
        return run_choice(*source, self._asked.sampling, self._asked.form)

    def _finished_run(self, source: Source) -> ChoiceRun:
        sampling = self._asked.sampling
        if self._is_fast():
            words = islice(generate(*source, sampling.key), sampling.max_tokens)
            return ChoiceRun.of_words("".join(words), sampling)
        run = self._run(source)
        run.run()
        return run

    async def _write_words(
        self, request: web.Request, response: web.StreamResponse, parts: list[_Parts]
    ) -> None:
        """Each event is a word between constant bytes: what a load test does all day."""
        core, sampling = self._core, self._asked.sampling
        loop = asyncio.get_running_loop()
        due = loop.time()
        last = sampling.max_tokens - 1
        for number in range(sampling.max_tokens):
            # Most tokens wait for nothing but their turn, which is worth no call.
            if number == self._break_at or core.pace.tokens_per_s:
                due = await self._await_turn(request, number, due)
            elif number:
                due = 0.0
                await asyncio.sleep(0)
            if core.is_dead:
                core.check_alive()
            for before, after, ending, choice in parts:
                token = next(choice).encode()
                await response.write(before + token + (ending if number == last else after))
            self._note_tokens(len(parts))

    async def _write_steps(
        self, request: web.Request, response: web.StreamResponse, runs: list[ChoiceRun]
    ) -> None:
        due = asyncio.get_running_loop().time()
        number = 0
        while going := [(index, run) for index, run in enumerate(runs) if run.finish is None]:
            due = await self._await_turn(request, number, due)
            for index, run in going:
                event = self._answer.step(index, run, run.step())
                if event:
                    await response.write(event)
            self._note_tokens(len(going))
            number += 1

    async def _await_turn(self, request: web.Request, number: int, due: float) -> float:
        """Wait until token `number` (from 0) may be written; returns when that was to be."""
        if number == self._break_at:
            await self._break_off(request)
        if number:
            rate = self._core.pace.tokens_per_s
            if rate:
                loop = asyncio.get_running_loop()
                due = (due or loop.time()) + 1 / rate
                await asyncio.sleep(max(0.0, due - loop.time()))
            else:
                due = 0.0
                await asyncio.sleep(0)
        if self._core.is_dead:
            self._core.check_alive()
        return due

    async def _break_off(self, request: web.Request) -> None:
        """Suffer a stall, which only the client's leaving ends, or a cut."""
        if self._has_fault("cut"):
            raise drop(request)
        await asyncio.get_running_loop().create_future()

    async def _reset_after_headers(self, request: web.Request, size: int) -> None:
        """The status line and the headers of an answer of `size` bytes, then a reset."""
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.content_length = size
        await response.prepare(request)
        await flush(request)
        raise reset(request)

    def _has_fault(self, kind: Kind) -> bool:
        return self._fault is not None and self._fault.kind == kind

    async def _start(self) -> list[Source]:
        """Obtain the KV, wait for the first token; returns what each choice is made of."""
        asked, core, traffic = self._asked, self._core, self._traffic
        fetched: tuple[bytes, ...] | None = None
        tokens, external = asked.prompt_tokens * asked.sampling.n, self._connector.claim(asked)
        if asked.leg == "decode" and asked.kv is not None:
            fetched = await self._connector.obtain(asked, self._rank, self._request_id)
        else:
            traffic.admit(tokens, external)
            if asked.leg == "plain" and core.options.garbles_plain_requests:
                core.counters.errors["garbled_plain"] += 1
                fetched = (urandom(16),)
        if core.pace.ttft_s:
            await asyncio.sleep(core.pace.ttft_s)
        core.check_alive()
        traffic.prefill(tokens, external)
        return [
            (prompt, block_contents(prompt) if fetched is None else fetched, number)
            for prompt in asked.prompts
            for number in range(asked.sampling.n)
        ]

    def _open_prefill(self) -> PrefillLeg | None:
        if self._asked.leg != "prefill" or self._asked.kv is None:
            return None
        return self._connector.open_prefill(self._asked, self._rank, self._request_id)

    async def _finish_prefill(
        self, leg: PrefillLeg | None, runs: list[ChoiceRun]
    ) -> dict[str, Any] | None:
        """Hand the KV over, if this is a prefill leg and its end allows it."""
        if leg is None:
            return None
        await self._core.gate.wait()
        self._core.check_alive()
        return leg.finish(runs, not self._has_fault("no_kv"))

    def _note_tokens(self, count: int) -> None:
        self._core.counters.tokens_sent += count
        self._traffic.generated += count
