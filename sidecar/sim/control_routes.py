"""/sim/*: what tests and benches see of an engine and do to it. Only the simulator has these."""

import base64
import json
from collections.abc import Callable
from typing import Any

from aiohttp import web

from sidecar.sim.core import Core, Received
from sidecar.sim.decode import Decode
from sidecar.sim.faults import KINDS, Fault
from sidecar.sim.heartbeat import Heartbeat
from sidecar.sim.prefill import Prefill


class ControlRoutes:
    """Observation and controls of one engine."""

    def __init__(
        self,
        core: Core,
        prefill: Prefill,
        decode: Decode,
        heartbeat: Heartbeat | None,
        count_connections: Callable[[], int],
    ) -> None:
        self._core = core
        self._prefill = prefill
        self._decode = decode
        self._heartbeat = heartbeat
        self._count_connections = count_connections

    def routes(self) -> list[web.RouteDef]:
        """All routes under /sim/."""
        return [
            web.get("/sim/state", self.state),
            web.get("/sim/last", self.last),
            web.post("/sim/hold", self.hold),
            web.post("/sim/pace", self.pace),
            web.post("/sim/beats", self.beats),
            web.post("/sim/health", self.health),
            web.post("/sim/fail", self.fail),
            web.post("/sim/reset", self.reset),
        ]

    async def state(self, _request: web.Request) -> web.Response:
        """GET /sim/state."""
        core = self._core
        options = core.options
        return web.json_response(
            {
                "role": options.role,
                "mode": options.mode,
                "version": options.version,
                "engine_id": core.engine_id,
                "dp_size": options.dp_size,
                "tp_size": options.tp_size,
                "is_dead": core.is_dead,
                "cause_of_death": core.cause_of_death,
                "running": core.running,
                "waiting": core.waiting,
                "holding_now": core.gate.holding_now,
                "held_transfers": self._prefill.store.transfers,
                "held_blocks": self._prefill.store.blocks,
                "notices": len(self._prefill.notices),
                "leaked_transfers": len(self._decode.leaked),
                "leaked_blocks": sum(self._decode.leaked.values()),
                "beats_sent": self._heartbeat.sent if self._heartbeat else 0,
                "connections": self._count_connections(),
                **core.counters.as_dict(),
            }
        )

    async def last(self, request: web.Request) -> web.Response:
        """GET /sim/last?leg=prefill|decode|plain: the last requests, oldest first."""
        leg = request.query.get("leg", "")
        for name, kept in self._core.received.items():
            if name == leg:
                return web.json_response([_show(one) for one in kept])
        raise web.HTTPBadRequest(text="leg is prefill, decode or plain")

    async def hold(self, request: web.Request) -> web.Response:
        """POST /sim/hold {"hold": bool, "limit_s": 30}."""
        given = await _read(request, {"hold": bool, "limit_s": float}, "hold")
        self._core.gate.set(given["hold"], given.get("limit_s", 30.0))
        return await self.state(request)

    async def pace(self, request: web.Request) -> web.Response:
        """POST /sim/pace {"ttft_ms": .., "tokens_per_s": ..}: each optional."""
        given = await _read(request, {"ttft_ms": float, "tokens_per_s": float})
        pace = self._core.pace
        pace.ttft_s = given.get("ttft_ms", pace.ttft_s * 1000) / 1000
        pace.tokens_per_s = given.get("tokens_per_s", pace.tokens_per_s)
        return await self.state(request)

    async def beats(self, request: web.Request) -> web.Response:
        """POST /sim/beats {"on": bool}."""
        given = await _read(request, {"on": bool}, "on")
        if self._heartbeat is not None:
            self._heartbeat.is_on = given["on"]
        return await self.state(request)

    async def health(self, request: web.Request) -> web.Response:
        """POST /sim/health {"status": 200, "delay_s": 0, "refuse": false}: absent = default."""
        given = await _read(request, {"status": int, "delay_s": float, "refuse": bool})
        health = self._core.health
        health.status = given.get("status", 200)
        health.delay_s = given.get("delay_s", 0.0)
        health.refuse = given.get("refuse", False)
        return await self.state(request)

    async def fail(self, request: web.Request) -> web.Response:
        """POST /sim/fail {"leg", "kind", "count": 1, "status": 500, "after_tokens": 0}."""
        types = {"leg": str, "kind": str, "count": int, "status": int, "after_tokens": int}
        given = await _read(request, types, "kind")
        leg, kind = given.get("leg"), given["kind"]
        if leg not in self._core.received or kind not in KINDS:
            raise web.HTTPBadRequest(text=f"leg or kind is unknown; the kinds are {KINDS}")
        fault = Fault(kind, given.get("status", 500), given.get("after_tokens", 0))
        self._core.faults.set(leg, fault, given.get("count", 1))
        return await self.state(request)

    async def reset(self, request: web.Request) -> web.Response:
        """POST /sim/reset: counts and kept requests start anew; held transfers stay."""
        self._core.counters.reset()
        for kept in self._core.received.values():
            kept.clear()
        return await self.state(request)


async def _read(
    request: web.Request, types: dict[str, type], required: str | None = None
) -> dict[str, Any]:
    """The JSON object of a control request, checked; raises HTTPBadRequest naming the fault."""
    try:
        given = json.loads(await request.read() or b"{}")
    except ValueError as error:
        raise web.HTTPBadRequest(text=f"not JSON: {error}") from None
    if not isinstance(given, dict):
        raise web.HTTPBadRequest(text="not a JSON object")
    if required is not None and required not in given:
        raise web.HTTPBadRequest(text=f"{required} is missing")
    for key, value in given.items():
        wanted = types.get(key)
        is_right = type(value) is wanted or (wanted is float and type(value) is int)
        if wanted is None or not is_right or (wanted in (int, float) and value < 0):
            raise web.HTTPBadRequest(text=f"{key}: unknown, or a wrong value")
    return given


def _show(received: Received) -> dict[str, Any]:
    body = received.body
    return {
        "method": received.method,
        "path": received.path,
        "headers": received.headers,
        "rank": received.rank,
        "body_bytes": received.body_bytes,
        "body": None if body is None else body.decode("utf-8", "replace"),
        "body_base64": None if body is None else base64.b64encode(body).decode(),
    }
