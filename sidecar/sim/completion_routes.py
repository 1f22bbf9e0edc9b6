"""POST /v1/completions and /v1/chat/completions: one request from arrival to its last byte."""

import asyncio
import time
import uuid
from typing import Any

from aiohttp import web

from sidecar.sim.answer import Answer
from sidecar.sim.api_error import ApiError
from sidecar.sim.connection import reset
from sidecar.sim.core import KEPT_BODY_BYTES, Core, Received
from sidecar.sim.counters import Leg
from sidecar.sim.decode import Decode
from sidecar.sim.fault_answer import error_answer
from sidecar.sim.faults import Fault
from sidecar.sim.generation import Generation
from sidecar.sim.model import Api
from sidecar.sim.model_request import read_json_object, read_model_request
from sidecar.sim.prefill import Prefill


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
        except asyncio.CancelledError:
            core.counters.aborted += 1
            raise
        except ConnectionError:
            core.counters.aborted += 1
            # As a cancellation: aiohttp would log any other exception of a lost client.
            raise asyncio.CancelledError from None
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
        fault = self._core.faults.take(asked.leg)
        if fault is not None:
            early = await _suffer(fault, request)
            if early is not None:
                self._core.counters.rejected += 1
                return early
        answer = Answer(api, request_id, self._core.options.model, int(time.time()))
        sides = (self._core, self._prefill, self._decode)
        run = Generation(*sides, asked, rank, request_id, answer, fault)
        return await (run.answer_streamed(request) if asked.stream else run.answer_whole(request))

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


async def _suffer(fault: Fault, request: web.Request) -> web.Response | None:
    """What a fault does before the model runs; an answer in place of the model's, if any."""
    match fault.kind:
        case "status":
            return error_answer(fault)
        case "reset" if fault.when == "before":
            raise reset(request)
        case "slow":
            await asyncio.sleep(fault.delay_s)
        case "hang":
            await asyncio.get_running_loop().create_future()  # until the client leaves
    return None


def _leg_of_body(body: dict[str, Any]) -> Leg:
    kv = body.get("kv_transfer_params")
    if isinstance(kv, dict) and kv.get("do_remote_decode"):
        return "prefill"
    return "decode" if isinstance(kv, dict) and kv.get("do_remote_prefill") else "plain"
