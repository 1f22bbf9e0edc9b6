"""One life of an instance, from its first ping until it stops or dies.

Order, as vLLM's: first ping sent, start delay, then links and HTTP listen. Invariant: whatever
a life started has ended when `run` returns, so that the next one can take the same ports.
"""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial

from aiohttp import web

from sidecar.sim.audio_routes import AudioRoutes
from sidecar.sim.completion_routes import CompletionRoutes
from sidecar.sim.control_routes import ControlRoutes
from sidecar.sim.core import Core
from sidecar.sim.door import Door
from sidecar.sim.fault_routes import FaultRoutes
from sidecar.sim.guard import guard_of
from sidecar.sim.heartbeat import Heartbeat, payload_maker
from sidecar.sim.intake import Intake
from sidecar.sim.link import LinkServer
from sidecar.sim.metrics_route import MetricsRoute
from sidecar.sim.moriio import Moriio
from sidecar.sim.nixl import Nixl
from sidecar.sim.notify_ports import NotifyPorts
from sidecar.sim.options import SimOptions, parse_address
from sidecar.sim.pooling_routes import PoolingRoutes
from sidecar.sim.ports import Ports
from sidecar.sim.service_routes import ServiceRoutes

KEEP_ALIVE_S = 5.0  # vLLM's (uvicorn's) idle close
MAX_BODY_BYTES = 256 << 20
REAP_TICKS = 10  # sweeps in the time that blocks are kept, at least one a second


class Life:
    """The parts of one life and the order in which they start and stop."""

    def __init__(self, options: SimOptions, ports: Ports, number: int) -> None:
        self._options = options
        self._ports = ports
        self._end = asyncio.Event()
        self._down_s: float | None = None
        self._core = Core(
            options, ports.http_address.host, ports.handshake_port, ports.notify_port, number
        )
        self._connector = Nixl(self._core) if options.is_nixl else Moriio(self._core)

    def stop(self) -> None:
        """End for good."""
        self._end.set()

    def die(self, down_s: float) -> None:
        """End at once; another life follows after `down_s` seconds."""
        self._down_s = down_s
        self._end.set()

    async def run(self, on_ready: Callable[[], None]) -> float | None:
        """Live; returns after how many seconds the next life starts, or None."""
        async with AsyncExitStack() as stack:
            heartbeat = self._start_heartbeat(stack)
            if not await has_ended(self._end, self._options.start_delay_s):
                await self._serve_links(stack)
                await self._serve_http(heartbeat, stack)
                on_ready()
                await self._reap_until_end()
        return self._down_s

    def _start_heartbeat(self, stack: AsyncExitStack) -> Heartbeat | None:
        options, ports = self._options, self._ports
        if not options.proxy:
            return None
        payload = payload_maker(
            options, ports.http_address, ports.handshake_port, ports.notify_port
        )
        proxy = parse_address("--proxy", options.proxy)
        heartbeat = Heartbeat(proxy, options.ping_interval_s, payload)
        heartbeat.start()
        stack.callback(heartbeat.stop)
        return heartbeat

    async def _serve_links(self, stack: AsyncExitStack) -> None:
        core, connector = self._core, self._connector
        stack.callback(core.links.close)
        for rank, listener in enumerate(self._ports.handshakes):
            server = LinkServer(partial(connector.answer, rank))
            stack.callback(server.close)
            await server.listen(listener)
        stack.callback(core.zmq.term)
        stack.callback(core.notifier.close)
        if isinstance(connector, Moriio):
            notify = NotifyPorts(core, connector.hear)
            stack.callback(notify.close)
            for index, bound in enumerate(self._ports.notifies):
                notify.listen(index, bound)
        stack.callback(connector.close)

    async def _serve_http(self, heartbeat: Heartbeat | None, stack: AsyncExitStack) -> None:
        core, connector = self._core, self._connector
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[guard_of(core)])
        app.on_response_prepare.append(_vary)
        runner = web.AppRunner(
            app,
            handler_cancellation=True,  # a client that leaves is an abort, as in vLLM
            keepalive_timeout=KEEP_ALIVE_S,
            access_log=None,
            shutdown_timeout=0.1,
        )
        door = Door(runner, self._ports)
        intake = Intake(core)
        model = CompletionRoutes(core, intake, connector)
        app.add_routes(
            [
                *model.routes(),
                *PoolingRoutes(core, intake).routes(),
                *AudioRoutes(core, intake).routes(),
                *ServiceRoutes(core, model.read).routes(),
                *MetricsRoute(core, connector).routes(),
                *ControlRoutes(core, connector, heartbeat, door).routes(),
                *FaultRoutes(core, door, self.die).routes(),
            ]
        )
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        stack.callback(door.close)
        await door.open()

    async def _reap_until_end(self) -> None:
        options = self._options
        limit_s = options.kv_lease_s if options.is_nixl else options.defer_timeout_s
        tick_s = min(1.0, limit_s / REAP_TICKS)
        loop = asyncio.get_running_loop()
        while not await has_ended(self._end, tick_s):
            self._connector.reap(loop.time())


async def _vary(_request: web.Request, response: web.StreamResponse) -> None:
    """As vLLM's middleware for CORS does to every answer, asked from a page or not."""
    response.headers["Vary"] = "Origin"


async def has_ended(end: asyncio.Event, within_s: float) -> bool:
    """Wait up to `within_s` seconds for the end; whether it came."""
    try:
        async with asyncio.timeout(within_s):
            await end.wait()
    except TimeoutError:
        return False
    return True
