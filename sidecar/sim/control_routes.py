"""/sim/*: what tests and benches see of an engine and do to it. Only the simulator has these."""

import base64
from typing import Any

from aiohttp import web

from sidecar.sim.connector import Connector
from sidecar.sim.control_body import read_control
from sidecar.sim.core import Core, Received
from sidecar.sim.door import Door
from sidecar.sim.heartbeat import Heartbeat


class ControlRoutes:
    """Observation and controls of one engine."""

    def __init__(
        self,
        core: Core,
        connector: Connector,
        heartbeat: Heartbeat | None,
        door: Door,
    ) -> None:
        self._core = core
        self._connector = connector
        self._heartbeat = heartbeat
        self._door = door

    def routes(self) -> list[web.RouteDef]:
        """All routes under /sim/."""
        return [
            web.get("/sim/state", self.state),
            web.get("/sim/last", self.last),
            web.post("/sim/hold", self.hold),
            web.post("/sim/pace", self.pace),
            web.post("/sim/beats", self.beats),
            web.post("/sim/health", self.health),
            web.post("/sim/model", self.model),
            web.post("/sim/reset", self.reset),
        ]

    async def state(self, _request: web.Request) -> web.Response:
        """GET /sim/state."""
        core = self._core
        options = core.options
        return web.json_response(
            {
                "role": options.role,
                "connector": options.connector,
                "mode": options.mode,
                "version": options.version,
                "engine_id": self._connector.engine_id,
                "dp_size": options.dp_size,
                "tp_size": options.tp_size,
                "lives": core.lives,
                "is_dead": core.is_dead,
                "cause_of_death": core.cause_of_death,
                "running": core.running,
                "waiting": core.waiting,
                "holding_now": core.gate.holding_now,
                **self._connector.state(),
                "notify_threads_dead": len(core.dead_notify_ranks),
                "models": core.models.names,
                "is_profiling": core.is_profiling,
                "beats_sent": self._heartbeat.sent if self._heartbeat else 0,
                "connections": self._door.connections,
                **core.counters.as_dict(),
            }
        )

    async def last(self, request: web.Request) -> web.Response:
        """GET /sim/last?leg=prefill|decode|plain|single: the last requests, oldest first."""
        leg = request.query.get("leg", "")
        for name, kept in self._core.received.items():
            if name == leg:
                return web.json_response([_show(one) for one in kept])
        raise web.HTTPBadRequest(text="leg is prefill, decode, plain or single")

    async def hold(self, request: web.Request) -> web.Response:
        """POST /sim/hold {"hold": bool, "limit_s": 30}."""
        given = await read_control(request, {"hold": bool, "limit_s": float}, "hold")
        self._core.gate.set(given["hold"], given.get("limit_s", 30.0))
        return await self.state(request)

    async def pace(self, request: web.Request) -> web.Response:
        """POST /sim/pace {"ttft_ms": .., "tokens_per_s": ..}: each optional."""
        given = await read_control(request, {"ttft_ms": float, "tokens_per_s": float})
        pace = self._core.pace
        pace.ttft_s = given.get("ttft_ms", pace.ttft_s * 1000) / 1000
        pace.tokens_per_s = given.get("tokens_per_s", pace.tokens_per_s)
        return await self.state(request)

    async def beats(self, request: web.Request) -> web.Response:
        """POST /sim/beats {"on": bool}."""
        given = await read_control(request, {"on": bool}, "on")
        if self._heartbeat is not None:
            self._heartbeat.is_on = given["on"]
        return await self.state(request)

    async def health(self, request: web.Request) -> web.Response:
        """POST /sim/health {"status": 200, "delay_s": 0, "refuse": false}: absent = default."""
        given = await read_control(request, {"status": int, "delay_s": float, "refuse": bool})
        health = self._core.health
        health.status = given.get("status", 200)
        health.delay_s = given.get("delay_s", 0.0)
        health.refuse = given.get("refuse", False)
        return await self.state(request)

    async def model(self, request: web.Request) -> web.Response:
        """POST /sim/model {"load": NAME} or {"unload": NAME}: an adapter comes or goes."""
        given = await read_control(request, {"load": str, "unload": str})
        if len(given) != 1 or not all(given.values()):
            raise web.HTTPBadRequest(text="load or unload is missing")
        models = self._core.models
        if "load" in given:
            models.load(given["load"])
        elif not models.unload(given["unload"]):
            raise web.HTTPBadRequest(text=f"there is no adapter {given['unload']!r}")
        return await self.state(request)

    async def reset(self, request: web.Request) -> web.Response:
        """POST /sim/reset: counts and kept requests start anew; held transfers stay."""
        self._core.counters.reset()
        for kept in self._core.received.values():
            kept.clear()
        return await self.state(request)


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
