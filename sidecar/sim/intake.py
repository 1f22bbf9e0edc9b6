"""What every request to the model goes through before it runs: recorded, ranked, faulted."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from aiohttp import web

from sidecar.sim.api_error import ApiError
from sidecar.sim.connection import reset
from sidecar.sim.core import Core
from sidecar.sim.fault_answer import error_answer
from sidecar.sim.faults import Fault
from sidecar.sim.kv_params import leg_of
from sidecar.sim.model_request import read_json_object

Asked = TypeVar("Asked")
ErrorBody = Callable[[ApiError], bytes]
Unpack = Callable[[web.Request, bytes], Awaitable[Mapping[str, Any]]]
"""A body as fields by name; raises ApiError."""


@dataclass(frozen=True, slots=True)
class Admitted(Generic[Asked]):
    """A request that may run. `early`: a fault's answer in place of the model's."""

    body: Mapping[str, Any]
    asked: Asked
    rank: int
    fault: Fault | None
    early: web.Response | None


class Intake:
    """The door between one engine's routes and its model."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def serve(
        self,
        request: web.Request,
        work: Callable[[web.Request], Awaitable[web.StreamResponse]],
        error_body: ErrorBody = ApiError.body,
    ) -> web.StreamResponse:
        """Run the work: errors become answers, and a client that leaves is counted."""
        core = self._core
        core.running += 1
        try:
            return await work(request)
        except ApiError as error:
            core.counters.rejected += 1
            body = error.body() if error.is_validation else error_body(error)
            return web.Response(status=error.status, body=body, content_type="application/json")
        except asyncio.CancelledError:
            core.counters.aborted += 1
            raise
        except ConnectionError:
            core.counters.aborted += 1
            # As a cancellation: aiohttp would log any other exception of a lost client.
            raise asyncio.CancelledError from None
        finally:
            core.running -= 1

    async def admit(
        self,
        request: web.Request,
        read: Callable[[Mapping[str, Any]], Asked],
        unpack: Unpack | None = None,
    ) -> Admitted[Asked]:
        """Read the body, JSON without `unpack`, with `read`, which raises ApiError; suffer what
        comes before the model."""
        raw = await request.read()
        body: Mapping[str, Any] = {}
        rank = 0
        try:
            body = await (unpack or _unpack_json)(request, raw)
            self._core.check_alive()
            asked = read(body)
            rank = self._core.pick_rank(self._pinned_rank(request))
        finally:
            # Also what is refused, so that a test can see why.
            leg = leg_of(body.get("kv_transfer_params"))
            self._core.keep(request, raw, leg, rank)
        self._core.counters.ranks[leg][rank] += 1
        fault = self._core.faults.take(leg)
        early = None if fault is None else await _suffer(fault, request)
        if early is not None:
            self._core.counters.rejected += 1
        return Admitted(body, asked, rank, fault, early)

    def _pinned_rank(self, request: web.Request) -> int | None:
        """X-data-parallel-rank: out of range is 400, not an integer is ignored (protocol.md c).

        Before 0.33 `/v1/responses` does not look at it (seen on 0.32)."""
        if request.path == "/v1/responses" and self._core.options.release < (0, 33):
            return None
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


async def _unpack_json(request: web.Request, raw: bytes) -> Mapping[str, Any]:
    return read_json_object(request.headers.get("Content-Type", ""), raw)


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
