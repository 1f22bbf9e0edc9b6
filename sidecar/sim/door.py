"""The engine's API listener: it can be closed for a while, and running connections go on."""

import asyncio

from aiohttp import web

from sidecar.sim.connection import reset_transport
from sidecar.sim.ports import Ports

BACKLOG = 4096


class Door:
    """Opens on the API's port; refuses (ECONNREFUSED) while closed."""

    def __init__(self, runner: web.AppRunner, ports: Ports) -> None:
        self._runner = runner
        self._ports = ports
        self._site: web.SockSite | None = None
        self._reopening: asyncio.Task[None] | None = None
        self.refuses_for_s = 0.0
        """For how many seconds it was closed; 0: it is open."""

    @property
    def connections(self) -> int:
        """Open connections of clients."""
        return len(self._runner.server.connections) if self._runner.server else 0

    async def open(self) -> None:
        """Listen."""
        self._site = web.SockSite(self._runner, self._ports.http, backlog=BACKLOG)
        await self._site.start()

    async def refuse(self, for_s: float) -> None:
        """Close now, and open again after `for_s` seconds; the last word counts."""
        self._cancel()
        self.refuses_for_s = for_s
        if self._site is not None:
            await self._site.stop()
            self._site = None
            await self._ports.retake_http()
        self._reopening = asyncio.create_task(self._open_later(for_s))

    async def stop_refusing(self) -> None:
        """Open again now, if it is closed."""
        self._cancel()
        if self._site is None:
            self.refuses_for_s = 0.0
            await self.open()

    def close(self) -> None:
        """The life ends: reset every connection. The runner closes the listener."""
        self._cancel()
        for handler in self._runner.server.connections if self._runner.server else ():
            reset_transport(handler.transport)

    def _cancel(self) -> None:
        if self._reopening is not None:
            self._reopening.cancel()
            self._reopening = None

    async def _open_later(self, for_s: float) -> None:
        await asyncio.sleep(for_s)
        self._reopening = None  # from here on it is not cut short
        await self.stop_refusing()
