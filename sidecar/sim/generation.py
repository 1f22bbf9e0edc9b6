"""One admitted request: obtains its KV, then writes its tokens at the engine's pace."""

import asyncio
from collections.abc import Iterator
from itertools import islice
from os import urandom
from typing import Any

from aiohttp import web

from sidecar.sim.answer import DONE, Answer, error_event
from sidecar.sim.api_error import ApiError
from sidecar.sim.blocks import PushTarget
from sidecar.sim.connection import drop, flush, reset
from sidecar.sim.core import Core
from sidecar.sim.decode import Decode
from sidecar.sim.faults import Fault, Kind
from sidecar.sim.model import Prompt, block_contents, generate
from sidecar.sim.model_request import ModelRequest
from sidecar.sim.prefill import Prefill

_STREAM_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8"}


class Generation:
    """One request on one rank, answered whole or streamed, with the fault it suffers if any."""

    def __init__(
        self,
        core: Core,
        prefill: Prefill,
        decode: Decode,
        asked: ModelRequest,
        rank: int,
        request_id: str,
        answer: Answer,
        fault: Fault | None,
    ) -> None:
        self._core = core
        self._prefill = prefill
        self._decode = decode
        self._asked = asked
        self._rank = rank
        self._request_id = request_id
        self._answer = answer
        self._fault = fault
        is_broken_off = fault is not None and fault.kind in ("stall", "cut")
        self._break_at = fault.after_tokens if fault and is_broken_off else -1
        self._prompt_tokens = sum(prompt.tokens for prompt in asked.prompts)

    async def answer_whole(self, request: web.Request) -> web.Response:
        """The answer in one piece; raises ApiError."""
        asked, core = self._asked, self._core
        target = self._check_prefill()
        words = await self._start()
        if asked.max_tokens > 1 and core.pace.tokens_per_s:
            await asyncio.sleep((asked.max_tokens - 1) / core.pace.tokens_per_s)
        if self._break_at >= 0:
            await self._break_off(request)
        parameters = await self._finish_prefill(target) if asked.leg == "prefill" else None
        core.check_alive()
        texts = ["".join(islice(choice, asked.max_tokens)) for choice in words]
        if asked.echo:
            prompts = [p.text for p in asked.prompts for _ in range(asked.n)]
            texts = [prompt + text for prompt, text in zip(prompts, texts, strict=True)]
        count = asked.max_tokens * len(texts)
        core.counters.tokens_sent += count
        if self._has_fault("eos"):
            # The end-of-sequence token is a token, but has no text.
            texts, reason = [""] * len(texts), "stop"
        else:
            reason = "length"
        body = self._answer.whole(texts, self._prompt_tokens, count, parameters, reason)
        if self._has_fault("reset"):
            await self._reset_after_headers(request, len(body))
        return web.Response(body=body, content_type="application/json")

    async def answer_streamed(self, request: web.Request) -> web.StreamResponse:
        """The answer as events; its headers go before the first token, as vLLM's do."""
        target = self._check_prefill()
        response = web.StreamResponse(headers=_STREAM_HEADERS)
        await response.prepare(request)
        if self._has_fault("reset"):
            await flush(request)
            raise reset(request)
        try:
            words = await self._start()
            await self._write_tokens(request, response, words)
            if self._asked.leg == "prefill":
                await self._finish_prefill(target)
        except ApiError as error:
            # The status line has gone: vLLM reports in an event and ends the stream cleanly.
            await response.write(error_event(error.body()))
        await response.write(DONE)
        await response.write_eof()
        return response

    async def _write_tokens(
        self, request: web.Request, response: web.StreamResponse, words: list[Iterator[str]]
    ) -> None:
        asked, core, answer = self._asked, self._core, self._answer
        for event in answer.starts(len(words)):
            await response.write(event)
        if asked.echo:
            for index in range(len(words)):
                prompt = asked.prompts[index // asked.n].text
                await response.write(answer.echo(index, prompt))
        parts = [(*answer.token_parts(index), w) for index, w in enumerate(words)]
        loop = asyncio.get_running_loop()
        due = loop.time()
        last = asked.max_tokens - 1
        for number in range(asked.max_tokens):
            if number == self._break_at:
                await self._break_off(request)
            if number:
                rate = core.pace.tokens_per_s
                due = (due or loop.time()) + 1 / rate if rate else 0.0
                await asyncio.sleep(max(0.0, due - loop.time()) if rate else 0)
            if core.is_dead:
                core.check_alive()
            for before, after, ending, choice in parts:
                token = next(choice).encode()
                await response.write(before + token + (ending if number == last else after))
            core.counters.tokens_sent += len(parts)
        if asked.include_usage:
            count = asked.max_tokens * len(words)
            await response.write(answer.usage(self._prompt_tokens, count))

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

    async def _start(self) -> list[Iterator[str]]:
        """Obtain the KV, wait for the first token; returns each choice's words."""
        asked, core = self._asked, self._core
        fetched: tuple[bytes, ...] | None = None
        if asked.leg == "decode" and asked.kv is not None:
            if core.options.role != "decode":
                raise self._wrong_role()
            fetched = await self._decode.obtain(asked, asked.kv, self._rank, self._request_id)
        elif asked.leg == "plain" and core.options.garbles_plain_requests:
            core.counters.errors["garbled_plain"] += 1
            fetched = (urandom(16),)
        if core.pace.ttft_s:
            await asyncio.sleep(core.pace.ttft_s)
        core.check_alive()
        return [
            generate(prompt, _blocks(prompt, fetched), number)
            for prompt in asked.prompts
            for number in range(asked.n)
        ]

    def _check_prefill(self) -> PushTarget | None:
        if self._asked.leg != "prefill" or self._asked.kv is None:
            return None
        if self._core.options.role != "prefill":
            raise self._wrong_role()
        return self._prefill.check(self._asked, self._asked.kv, self._request_id)

    async def _finish_prefill(self, target: PushTarget | None) -> dict[str, Any] | None:
        assert self._asked.kv is not None
        await self._core.gate.wait()
        self._core.check_alive()
        now = asyncio.get_running_loop().time()
        is_kept = not (self._has_fault("no_kv") or self._has_fault("eos"))
        return self._prefill.finish(self._asked, self._asked.kv, self._rank, target, now, is_kept)

    def _wrong_role(self) -> ApiError:
        self._core.counters.errors["wrong_role"] += 1
        return ApiError(500, f"Internal server error (sim: {self._asked.leg} leg on wrong role)")


def _blocks(prompt: Prompt, fetched: tuple[bytes, ...] | None) -> tuple[bytes, ...]:
    return block_contents(prompt) if fetched is None else fetched
