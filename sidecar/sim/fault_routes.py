"""/sim/faults: set, list and clear what goes wrong with an engine."""

import os
from collections.abc import Callable
from typing import Any

from aiohttp import web

from sidecar.sim.connection import flush
from sidecar.sim.control_body import check_values, read_object
from sidecar.sim.core import Core
from sidecar.sim.door import Door
from sidecar.sim.faults import FOR_EVER, KINDS, PARAMETERS, PREFILL_KINDS, Fault

ENGINE_KINDS = {"refuse": "for_s", "die": "down_s"}
"""Of the whole engine, not of a leg, each with the seconds that it must be given."""
_TYPES: dict[str, type] = {
    "kind": str,
    "leg": str,
    "when": str,
    "status": int,
    "headers": dict,
    "delay_s": float,
    "after_tokens": int,
    "for_s": float,
    "down_s": float,
}


class FaultRoutes:
    """The faults of one engine; `die` ends its life and takes the seconds until the next."""

    def __init__(self, core: Core, door: Door, die: Callable[[float], None]) -> None:
        self._core = core
        self._door = door
        self._die = die

    def routes(self) -> list[web.RouteDef]:
        """GET, POST and DELETE."""
        return [
            web.get("/sim/faults", self.show),
            web.post("/sim/faults", self.set),
            web.delete("/sim/faults", self.clear),
        ]

    async def show(self, _request: web.Request) -> web.Response:
        """GET /sim/faults: what is set; `left` -1 is until cleared."""
        listed = self._core.faults.listed()
        if self._door.refuses_for_s:
            listed.append({"kind": "refuse", "for_s": self._door.refuses_for_s})
        return web.json_response(listed)

    async def clear(self, request: web.Request) -> web.Response:
        """DELETE /sim/faults: none is set any more, and the API listens."""
        self._core.faults.clear()
        await self._door.stop_refusing()
        return await self.show(request)

    async def set(self, request: web.Request) -> web.StreamResponse:
        """POST /sim/faults {"kind", "leg", "count": 1, ...}: answers what is set."""
        given = await read_object(request)
        kind = given.get("kind")
        if kind in ENGINE_KINDS:
            seconds = _seconds_of(kind, given)
            if kind == "die":
                return await self._answer_and_die(request, seconds)
            if not seconds:
                raise web.HTTPBadRequest(text="for_s is more than 0: nothing else opens it again")
            await self._door.refuse(seconds)
        else:
            leg, count, fault = _read_fault(given)
            self._core.faults.set(leg, fault, count)
        return await self.show(request)

    async def _answer_and_die(self, request: web.Request, down_s: float) -> web.StreamResponse:
        answer = web.json_response([{"kind": "die", "down_s": down_s}])
        await answer.prepare(request)
        await answer.write_eof()
        await flush(request)
        if not down_s:
            os._exit(1)
        self._die(down_s)
        return answer


def _seconds_of(kind: str, given: dict[str, Any]) -> float:
    parameter = ENGINE_KINDS[kind]
    check_values(given, {"kind": str, parameter: float}, parameter)
    return float(given[parameter])


def _read_fault(given: dict[str, Any]) -> tuple[Any, int, Fault]:
    """(leg, count, fault) of a request that sets one; raises HTTPBadRequest."""
    count, body = given.pop("count", 1), given.pop("body", None)
    check_values(given, _TYPES, "kind")
    kind, leg = given["kind"], given.pop("leg", None)
    if kind not in KINDS:
        kinds = ", ".join([*KINDS, *ENGINE_KINDS])
        raise web.HTTPBadRequest(text=f"kind {kind!r} is none of {kinds}")
    if leg not in ("prefill", "decode", "plain") or (kind in PREFILL_KINDS and leg != "prefill"):
        raise web.HTTPBadRequest(text=f"leg is prefill, decode or plain; of {kind} not {leg!r}")
    if type(count) is not int or not (count >= 1 or count == FOR_EVER):
        raise web.HTTPBadRequest(text="count is a number of at least 1, or -1: until cleared")
    if body is not None:
        if not isinstance(body, str | dict):
            raise web.HTTPBadRequest(text="body is an object or a text")
        given["body"] = body
    foreign = given.keys() - {"kind", *PARAMETERS.get(kind, ())}
    if foreign:
        raise web.HTTPBadRequest(text=f"{kind} has no parameter {', '.join(sorted(foreign))}")
    _check_parameters(given)
    return leg, count, Fault(**given)


def _check_parameters(given: dict[str, Any]) -> None:
    if given.get("when", "before") not in ("before", "after"):
        raise web.HTTPBadRequest(text="when is before or after")
    if not 200 <= given.get("status", 500) <= 599:
        raise web.HTTPBadRequest(text="status is between 200 and 599")
    if not all(isinstance(value, str) for value in given.get("headers", {}).values()):
        raise web.HTTPBadRequest(text="headers is an object of texts")
    if given["kind"] == "slow" and "delay_s" not in given:
        raise web.HTTPBadRequest(text="delay_s is missing")
