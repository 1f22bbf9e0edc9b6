"""POST /v1/completions and /v1/chat/completions: one request from arrival to its last byte."""

import asyncio
import time
import uuid
from collections.abc import Iterator
from itertools import islice
from os import urandom
from typing import Any

from aiohttp import web

from sidecar.sim.answer import DONE, Answer, error_event
from sidecar.sim.api_error import ApiError
from sidecar.sim.core import KEPT_BODY_BYTES, Core, Received
from sidecar.sim.counters import Leg
from sidecar.sim.decode import Decode
from sidecar.sim.model import Api, Prompt, block_contents, generate
from sidecar.sim.model_request import ModelRequest, read_json_object, read_model_request
from sidecar.sim.prefill import Prefill

_STREAM_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8"}


class CompletionRoutes:
    """The model-running routes of one engine."""

    def __init__(self, core: Core, prefill: Prefill, decode: Decode) -> None:
        self._core = core
        self._prefill = prefill
        self._decode = decode

    async def completions(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/completions."""
        return await self._serve(request, "completions")

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/chat/completions."""
        return await self._serve(request, "chat")

    async def _serve(self, request: web.Request, api: Api) -> web.StreamResponse:
        core = self._core
        core.running += 1
        try:
            return await self._admit(request, api)
        except ApiError as error:
            core.counters.rejected += 1
            return web.Response(
                status=error.status, body=error.body(), content_type="application/json"
            )
        except (asyncio.CancelledError, ConnectionResetError):
            core.counters.aborted += 1
            raise
        finally:
            core.running -= 1

    async def _admit(self, request: web.Request, api: Api) -> web.StreamResponse:
        raw = await request.read()
        body: dict[str, Any] = {}
        rank = 0
        try:
            body = read_json_object(request.headers.get("Content-Type", ""), raw)
            self._core.check_alive()
            asked = read_model_request(api, body, self._core.options.model)
            rank = self._core.pick_rank(self._pinned_rank(request))
        finally:
            # Also what is refused, so that a test can see why.
            self._record(request, raw, _leg_of_body(body), rank)
        self._core.counters.ranks[asked.leg][rank] += 1
        request_id = request.headers.get("X-Request-Id") or uuid.uuid4().hex
        answer = Answer(api, request_id, self._core.options.model, int(time.time()))
        run = _Run(self._core, self._prefill, self._decode, asked, rank, request_id, answer)
        return await (run.stream(request) if asked.stream else run.whole())

    def _pinned_rank(self, request: web.Request) -> int | None:
        """X-data-parallel-rank: out of range is 400, not an integer is ignored (protocol.md c)."""
        try:
            rank = int(request.headers["X-data-parallel-rank"])
        except (KeyError, ValueError):
            return None
        if not 0 <= rank < self._core.options.dp_size:
            raise ApiError(
                400,
                f"data_parallel_rank {rank} is out of range [0, {self._core.options.dp_size}).",
            )
        return rank

    def _record(self, request: web.Request, raw: bytes, leg: Leg, rank: int) -> None:
        self._core.received[leg].append(
            Received(
                method=request.method,
                path=request.raw_path,
                headers=tuple(
                    (name.decode("latin-1"), value.decode("latin-1"))
                    for name, value in request.raw_headers
                ),
                body=raw if len(raw) <= KEPT_BODY_BYTES else None,
                body_bytes=len(raw),
                rank=rank,
            )
        )


def _leg_of_body(body: dict[str, Any]) -> Leg:
    kv = body.get("kv_transfer_params")
    if isinstance(kv, dict) and kv.get("do_remote_decode"):
        return "prefill"
    return "decode" if isinstance(kv, dict) and kv.get("do_remote_prefill") else "plain"


class _Run:
    """One admitted request: obtains its KV, then writes its tokens at the engine's pace."""

    def __init__(
        self,
        core: Core,
        prefill: Prefill,
        decode: Decode,
        asked: ModelRequest,
        rank: int,
        request_id: str,
        answer: Answer,
    ) -> None:
        self._core = core
        self._prefill = prefill
        self._decode = decode
        self._asked = asked
        self._rank = rank
        self._request_id = request_id
        self._answer = answer
        self._prompt_tokens = sum(prompt.tokens for prompt in asked.prompts)

    async def whole(self) -> web.Response:
        """The answer in one piece; raises ApiError."""
        asked, core = self._asked, self._core
        target = self._check_prefill()
        words = await self._start()
        if asked.max_tokens > 1 and core.pace.tokens_per_s:
            await asyncio.sleep((asked.max_tokens - 1) / core.pace.tokens_per_s)
        parameters = None
        if asked.leg == "prefill":
            parameters = await self._finish_prefill(target)
        core.check_alive()
        texts = ["".join(islice(choice, asked.max_tokens)) for choice in words]
        if asked.echo:
            prompts = [p.text for p in asked.prompts for _ in range(asked.n)]
            texts = [prompt + text for prompt, text in zip(prompts, texts, strict=True)]
        count = asked.max_tokens * len(texts)
        core.counters.tokens_sent += count
        body = self._answer.whole(texts, self._prompt_tokens, count, parameters)
        return web.Response(body=body, content_type="application/json")

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """The answer as events; its headers go before the first token, as vLLM's do."""
        target = self._check_prefill()
        response = web.StreamResponse(headers=_STREAM_HEADERS)
        await response.prepare(request)
        try:
            words = await self._start()
            await self._write_tokens(response, words)
            if self._asked.leg == "prefill":
                await self._finish_prefill(target)
        except ApiError as error:
            # The status line has gone: vLLM reports in an event and ends the stream cleanly.
            await response.write(error_event(error.body()))
        await response.write(DONE)
        await response.write_eof()
        return response

    async def _write_tokens(self, response: web.StreamResponse, words: list[Iterator[str]]) -> None:
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
            if number:
                rate = core.pace.tokens_per_s
                due = due + 1 / rate if rate else 0.0
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

    def _check_prefill(self) -> Any:
        if self._asked.leg != "prefill" or self._asked.kv is None:
            return None
        if self._core.options.role != "prefill":
            raise self._wrong_role()
        return self._prefill.check(self._asked, self._asked.kv, self._request_id)

    async def _finish_prefill(self, target: Any) -> dict[str, Any]:
        assert self._asked.kv is not None
        await self._core.gate.wait()
        self._core.check_alive()
        now = asyncio.get_running_loop().time()
        return self._prefill.finish(self._asked, self._asked.kv, self._rank, target, now)

    def _wrong_role(self) -> ApiError:
        self._core.counters.errors["wrong_role"] += 1
        return ApiError(500, f"Internal server error (sim: {self._asked.leg} leg on wrong role)")


def _blocks(prompt: Prompt, fetched: tuple[bytes, ...] | None) -> tuple[bytes, ...]:
    return block_contents(prompt) if fetched is None else fetched
