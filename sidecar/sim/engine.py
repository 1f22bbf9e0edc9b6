"""One simulated instance as a process: takes its ports, pings, serves, ends.

Order, as vLLM's: all ports bound, first ping sent, start delay, then links and HTTP listen.
"""

import asyncio
import json
import os
import resource
import signal
from contextlib import AsyncExitStack, suppress
from functools import partial

import uvloop
from aiohttp import web

from sidecar.sim.completion_routes import CompletionRoutes
from sidecar.sim.control_routes import ControlRoutes
from sidecar.sim.core import Core
from sidecar.sim.decode import Decode
from sidecar.sim.heartbeat import Heartbeat, payload_maker
from sidecar.sim.link import serve_link
from sidecar.sim.listening import bind, bind_range, port_of, reachable_host
from sidecar.sim.options import Address, SimOptions, parse_address
from sidecar.sim.prefill import Prefill
from sidecar.sim.service_routes import ServiceRoutes

BACKLOG = 4096
KEEP_ALIVE_S = 5.0  # vLLM's (uvicorn's) idle close
MAX_BODY_BYTES = 256 << 20
REAP_TICKS = 10  # sweeps in one defer time-out, at most one a second


def run_engine(options: SimOptions, lifeline_fd: int | None) -> None:
    """Run one instance until SIGTERM, SIGINT or the lifeline's end; raises OptionError."""
    _raise_open_files()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_Engine(options).run(lifeline_fd))


class _Engine:
    """The parts of one instance and the order in which they start and stop."""

    def __init__(self, options: SimOptions) -> None:
        self._options = options
        http = parse_address("--http", options.http)
        self._proxy = parse_address("--proxy", options.proxy) if options.proxy else None
        self._http = bind("--http", http)
        ranks = options.dp_size
        self._handshakes = bind_range("--handshake-port", http.host, options.handshake_port, ranks)
        self._notifies = bind_range("--notify-port", http.host, options.notify_port, ranks)
        host = reachable_host(http, self._proxy)
        self._address = Address(host, port_of(self._http))

    async def run(self, lifeline_fd: int | None) -> None:
        """Start everything, wait for the end, stop everything."""
        stop = asyncio.Event()
        _watch_for_end(stop, lifeline_fd)
        core = Core(
            self._options,
            self._address.host,
            port_of(self._handshakes[0]),
            port_of(self._notifies[0]),
        )
        prefill, decode = Prefill(core), Decode(core)
        async with AsyncExitStack() as stack:
            heartbeat = self._start_heartbeat(core, stack)
            if not await _has_ended(stop, self._options.start_delay_s):
                await self._serve(core, prefill, decode, heartbeat, stack)
                self._print_ready(core)
                await self._reap_until(stop, prefill)

    def _start_heartbeat(self, core: Core, stack: AsyncExitStack) -> Heartbeat | None:
        if self._proxy is None:
            return None
        payload = payload_maker(self._options, self._address, core.handshake_port, core.notify_port)
        heartbeat = Heartbeat(self._proxy, self._options.ping_interval_s, payload)
        heartbeat.start()
        stack.callback(heartbeat.stop)
        return heartbeat

    async def _serve(
        self,
        core: Core,
        prefill: Prefill,
        decode: Decode,
        heartbeat: Heartbeat | None,
        stack: AsyncExitStack,
    ) -> None:
        side = prefill if self._options.role == "prefill" else decode
        for sockets, answer in (
            (self._handshakes, side.answer_handshake),
            (self._notifies, side.answer_notify),
        ):
            for rank, listener in enumerate(sockets):
                server = await serve_link(listener, partial(answer, rank))
                stack.callback(server.close)
        stack.callback(core.links.close)
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        model = CompletionRoutes(core, prefill, decode)
        runner = web.AppRunner(
            app,
            handler_cancellation=True,  # a client that leaves is an abort, as in vLLM
            keepalive_timeout=KEEP_ALIVE_S,
            access_log=None,
            shutdown_timeout=0.1,
        )
        control = ControlRoutes(
            core,
            prefill,
            decode,
            heartbeat,
            lambda: len(runner.server.connections) if runner.server else 0,
        )
        app.add_routes(
            [
                web.post("/v1/completions", model.completions),
                web.post("/v1/chat/completions", model.chat),
                *ServiceRoutes(core).routes(),
                *control.routes(),
            ]
        )
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.SockSite(runner, self._http, backlog=BACKLOG).start()

    def _print_ready(self, core: Core) -> None:
        ready = {
            "ready": True,
            "role": self._options.role,
            "http": str(self._address),
            "handshake_port": core.handshake_port,
            "notify_port": core.notify_port,
            "pid": os.getpid(),
        }
        with suppress(OSError):  # nobody reads: the engine serves all the same
            print(json.dumps(ready), flush=True)

    async def _reap_until(self, stop: asyncio.Event, prefill: Prefill) -> None:
        tick_s = min(1.0, self._options.defer_timeout_s / REAP_TICKS)
        loop = asyncio.get_running_loop()
        while not await _has_ended(stop, tick_s):
            prefill.reap(loop.time())


async def _has_ended(stop: asyncio.Event, within_s: float) -> bool:
    """Wait up to `within_s` for the end; whether it came."""
    try:
        async with asyncio.timeout(within_s):
            await stop.wait()
    except TimeoutError:
        return False
    return True


def _watch_for_end(stop: asyncio.Event, lifeline_fd: int | None) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if lifeline_fd is None:
        return

    def read() -> None:
        try:
            gone = not os.read(lifeline_fd, 4096)
        except BlockingIOError:
            return
        except OSError:
            gone = True
        if gone:
            loop.remove_reader(lifeline_fd)
            stop.set()

    loop.add_reader(lifeline_fd, read)


def _raise_open_files() -> None:
    """Thousands of requests are as many sockets: soft limit to hard."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # "unlimited" may be above what the kernel takes
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
