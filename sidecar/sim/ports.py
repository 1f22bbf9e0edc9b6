"""The TCP ports of one instance: taken at its start, kept through its lives.

Bound but not listening while nobody serves, so that a dial is refused and no other process
gets the port. Whoever listens on a socket owns it; its closing is followed by `retake`.
"""

import asyncio
import socket

from sidecar.sim.listening import bind, bind_range, port_of, reachable_host
from sidecar.sim.options import Address, OptionError, SimOptions, parse_address

RETAKE_LIMIT_S = 5.0
RETAKE_POLL_S = 0.005


class Ports:
    """`http`, and the handshake and notify ports of each rank (NIXL has none of the latter: 0).

    Raises OptionError.
    """

    def __init__(self, options: SimOptions) -> None:
        where = parse_address("--http", options.http)
        proxy = parse_address("--proxy", options.proxy) if options.proxy else None
        self._host = where.host
        self.http = bind("--http", where)
        self.handshakes = bind_range(
            "--handshake-port", where.host, options.handshake_port, options.dp_size
        )
        self.notifies = (
            bind_range("--notify-port", where.host, options.notify_port, options.notify_ports)
            if options.notify_ports
            else []
        )
        self.http_address = Address(reachable_host(where, proxy), port_of(self.http))
        self.handshake_port = port_of(self.handshakes[0])
        self.notify_port = port_of(self.notifies[0]) if self.notifies else 0

    async def retake_http(self) -> None:
        """Take the API's port again after its listener was closed."""
        self.http = await self._retake(self.http, self.http_address.port)

    async def retake(self) -> None:
        """Take every port again after all listeners were closed; raises OptionError."""
        await self.retake_http()
        for sockets, first in (
            (self.handshakes, self.handshake_port),
            (self.notifies, self.notify_port),
        ):
            sockets[:] = [await self._retake(s, first + n) for n, s in enumerate(sockets)]

    async def _retake(self, old: socket.socket, port: int) -> socket.socket:
        old.close()  # bound and never listened on, or closed already
        loop = asyncio.get_running_loop()
        deadline = loop.time() + RETAKE_LIMIT_S
        while True:
            try:
                return bind("a port of the last life", Address(self._host, port))
            except OptionError:
                if loop.time() > deadline:
                    raise
            await asyncio.sleep(RETAKE_POLL_S)
