"""The two HTTP servers of the control process: observation (read-only) and admin (loopback).

Shows what it is handed; decides nothing. `/envoy/metrics` is Envoy's own `/stats/prometheus`, so
that one scrape target serves both.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from sidecar.errors import StartError
from sidecar.routing.instance_reply import InstanceReply
from sidecar.wire.names import as_ip

ENVOY_TIMEOUT_S = 5.0
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

PROFILE_PATHS = ("/start_profile", "/stop_profile")
HEALTHY_WORKERS = "^cluster.workers.membership_healthy$"


@dataclass(frozen=True, kw_only=True)
class Readings:
    """What the servers may ask for; each call reads the moment."""

    registry: CollectorRegistry
    not_ready: Callable[[], str]
    """why the pool cannot serve; empty: it can"""
    instances: Callable[[], list[dict[str, object]]]
    exchanges: Callable[[], list[dict[str, Any]]]
    status: Callable[[], dict[str, object]]
    config: Callable[[], object]
    drain: Callable[[], None]
    tell_all: Callable[[str, bytes, Mapping[str, str]], Awaitable[list[InstanceReply]]]
    """POST (path, body, headers) to every instance, and what each said"""
    shows_addresses: bool
    """to whoever may start a profile"""
    envoy_admin: str
    """`ip:port`"""


class AdminServer:
    def __init__(self, readings: Readings) -> None:
        self._readings = readings
        self._runners: list[web.AppRunner] = []
        self._envoy: aiohttp.ClientSession | None = None

    async def listen(self, *, observe: str, admin: str) -> None:
        """Bind both `ip:port`. Raises StartError naming the one that cannot be had."""
        self._envoy = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ENVOY_TIMEOUT_S))
        await self._serve("observe.listen", observe, self._observation())
        await self._serve("admin.listen", admin, self._admin())

    async def close(self) -> None:
        for runner in self._runners:
            await runner.cleanup()
        if self._envoy is not None:
            await self._envoy.close()

    async def _serve(self, key: str, listen: str, app: web.Application) -> None:
        host, _, port = listen.rpartition(":")
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
        await runner.setup()
        self._runners.append(runner)
        try:
            await web.TCPSite(runner, host.strip("[]"), int(port)).start()
        except OSError as error:
            raise StartError(f"{key}: cannot listen on {listen}: {error.strerror}") from None

    def _observation(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/healthz", _alive)
        app.router.add_get("/readyz", self._ready)
        app.router.add_get("/envoy/metrics", self._envoy_metrics)
        return app

    def _admin(self) -> web.Application:
        app = web.Application(middlewares=[_from_no_page])
        readings = self._readings
        app.router.add_get("/instances", _json(readings.instances))
        app.router.add_get("/exchanges", _json(readings.exchanges))
        app.router.add_get("/status", _json(readings.status))
        app.router.add_get("/config", _json(readings.config))
        app.router.add_post("/drain", self._drain)
        for path in PROFILE_PATHS:
            app.router.add_post(path, self._profile)
        return app

    async def _metrics(self, _request: web.Request) -> web.Response:
        text = generate_latest(self._readings.registry)
        return web.Response(body=text, headers={"content-type": CONTENT_TYPE_LATEST})

    async def _ready(self, _request: web.Request) -> web.Response:
        reason = self._readings.not_ready() or await self._no_worker_seen()
        return web.Response(status=503 if reason else 200, text=(reason or "ready") + "\n")

    async def _no_worker_seen(self) -> str:
        """Envoy's health checks find workers a moment after we do. Unknown counts as seen: the
        admin of an Envoy elsewhere may be out of reach."""
        assert self._envoy is not None
        url = f"http://{self._readings.envoy_admin}/stats?filter={HEALTHY_WORKERS}"
        try:
            async with self._envoy.get(url) as answer:
                text = await answer.text()
        except (aiohttp.ClientError, TimeoutError):
            return ""
        return "Envoy sees no worker yet" if text.strip().endswith(": 0") else ""

    async def _drain(self, _request: web.Request) -> web.Response:
        self._readings.drain()
        return web.json_response({"draining": True})

    async def _profile(self, request: web.Request) -> web.Response:
        """200 only if every instance said so; each one's own words in any case."""
        said = await self._readings.tell_all(request.path, await request.read(), request.headers)
        shown = [one.shown(with_address=self._readings.shows_addresses) for one in said]
        answer: dict[str, object] = {"instances": shown}
        headers = {"content-type": "application/json"}
        bad = [one.instance for one in said if not one.is_good]
        if bad or not said:
            message = f"Not done by {', '.join(bad)}." if bad else "There is no instance."
            kind, code = "bad_gateway", "profile_failed"
            answer["error"] = {"message": message, "type": kind, "param": None, "code": code}
            headers["x-pd-error"] = code
        return web.Response(
            status=502 if "error" in answer else 200,
            body=msgspec.json.format(msgspec.json.encode(answer), indent=2) + b"\n",
            headers=headers,
        )

    async def drain_envoy(self) -> bool:
        """Close Envoy's idle client connections; running streams end whole. False: no answer."""
        assert self._envoy is not None
        url = f"http://{self._readings.envoy_admin}/drain_listeners?graceful&skip_exit"
        try:
            async with self._envoy.post(url) as answer:
                return answer.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False

    async def _envoy_metrics(self, _request: web.Request) -> web.Response:
        assert self._envoy is not None
        url = f"http://{self._readings.envoy_admin}/stats/prometheus"
        try:
            async with self._envoy.get(url) as answer:
                body = await answer.read()
                return web.Response(status=answer.status, body=body, content_type="text/plain")
        except (aiohttp.ClientError, TimeoutError) as error:
            text = f"Envoy's admin at {self._readings.envoy_admin} does not answer: {error}\n"
            return web.Response(status=502, text=text)


@web.middleware
async def _from_no_page(request: web.Request, handler: Handler) -> web.StreamResponse:
    """A web page in an operator's browser may send a plain POST to this port, which then drains the
    router; and by a name of its own that leads here it may read all there is."""
    host = request.host.rpartition(":")[0] if ":" in request.host else request.host
    is_name = as_ip(host.strip("[]")) is None and host != "localhost" and "." in host
    if "Origin" in request.headers or (is_name and _is_loopback(request)):
        return web.Response(status=403, text="not for web pages: ask by address, without Origin\n")
    return await handler(request)


def _is_loopback(request: web.Request) -> bool:
    """Whoever asks does it from this machine, where nobody needs a name."""
    ip = as_ip((request.remote or "").partition("%")[0])
    return ip is not None and ip.is_loopback


async def _alive(_request: web.Request) -> web.Response:
    return web.Response(text="ok\n")


def _json(read: Callable[[], object]) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handler(_request: web.Request) -> web.Response:
        body = msgspec.json.format(msgspec.json.encode(read()), indent=2)
        return web.Response(body=body + b"\n", content_type="application/json")

    return handler
