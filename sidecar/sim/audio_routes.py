"""The routes of speech models: transcriptions and translations of an uploaded file."""

import asyncio
import time
import uuid
from collections.abc import Mapping
from functools import partial
from os import urandom
from typing import Any

from aiohttp import web

from sidecar.sim.api_error import ApiError
from sidecar.sim.audio_answer import AudioAnswer
from sidecar.sim.audio_form import read_form
from sidecar.sim.audio_request import AudioRequest, Task, read_audio_request
from sidecar.sim.core import Core
from sidecar.sim.intake import Intake

_PATHS: Mapping[str, Task] = {
    "/v1/audio/transcriptions": "transcribe",
    "/v1/audio/translations": "translate",
}


class AudioRoutes:
    """One engine's. A real engine hears or writes text; this one does both."""

    def __init__(self, core: Core, intake: Intake) -> None:
        self._core = core
        self._intake = intake

    def routes(self) -> list[web.RouteDef]:
        """All of them."""
        return [web.post(path, partial(self._serve, task)) for path, task in _PATHS.items()]

    async def _serve(self, task: Task, request: web.Request) -> web.StreamResponse:
        return await self._intake.serve(request, partial(self._run, task))

    async def _run(self, task: Task, request: web.Request) -> web.StreamResponse:
        admitted = await self._intake.admit(request, partial(self._read, task), read_form)
        if admitted.early is not None:
            return admitted.early
        core, asked = self._core, admitted.asked
        salt = b""
        if core.options.garbles_plain_requests:
            core.counters.errors["garbled_plain"] += 1
            salt = urandom(16)
        if core.pace.ttft_s:
            await asyncio.sleep(core.pace.ttft_s)
        answer = AudioAnswer(asked, salt)
        if asked.is_streamed:
            own = request.headers.get("X-Request-Id") or uuid.uuid4().hex
            return await self._stream(request, answer, f"{task}-{own}")
        return web.Response(body=answer.whole(), content_type="application/json")

    async def _stream(
        self, request: web.Request, answer: AudioAnswer, request_id: str
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        rate = self._core.pace.tokens_per_s
        for event in answer.events(request_id, int(time.time())):
            await response.write(event)
            await asyncio.sleep(1 / rate if rate else 0)
        await response.write_eof()
        return response

    def _read(self, task: Task, form: Mapping[str, Any]) -> AudioRequest:
        asked = read_audio_request(task, form, self._core.models)
        if "kv_transfer_params" in asked.xargs:
            # They become sampling parameters, where KV parameters lie too: seen on vLLM 0.32.
            self._core.counters.errors["kv_params_in_xargs"] += 1
            raise ApiError(500, "Internal server error (sim: kv_transfer_params in vllm_xargs)")
        return asked
