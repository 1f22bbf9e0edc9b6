"""The ext_proc server of one worker: one `ExchangeDriver` for each call.

Invariant: a prefill leg that outlives its call is waited for by the server.
"""

import asyncio
from collections.abc import Iterable
from pathlib import Path
from time import monotonic

from sidecar.edge.exchange_driver import ExchangeDriver, Surroundings
from sidecar.edge.http2_server import Http2Server
from sidecar.exchange.phase import Phase
from sidecar.exchange.records import Placed
from sidecar.wire.calls import Accept, Call, Carrier, Handler

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
METHOD = "Process"

CLOSE_S, CLOSE_POLL_S = 1.0, 0.01


def carrier(kind: str, accept: Accept) -> Carrier:
    """`http2`, or `grpcio`."""
    if kind == "http2":
        return Http2Server(accept)
    # Here, as the library alone is a third of a worker's memory.
    from sidecar.edge.grpcio_server import GrpcioServer

    return GrpcioServer(accept, SERVICE, METHOD)


class ExtProcServer:
    def __init__(self, surroundings: Surroundings, kind: str) -> None:
        self._surroundings = surroundings
        self._carrier = carrier(kind, self._accept)
        self._running: set[ExchangeDriver] = set()
        self._running_on: set[ExchangeDriver] = set()

    async def listen(self, path: Path) -> None:
        """Serve on a unix socket; whatever lies at `path` is replaced. The umask gives its mode.

        Raises StartError.
        """
        await self._carrier.listen(path)

    async def close(self, grace_s: float) -> None:
        await self._carrier.close(grace_s)
        deadline = monotonic() + CLOSE_S
        # A call that is over may hand its prefill leg over a moment later.
        while (self._running or self._running_on) and monotonic() < deadline:
            for driver in self._running_on:
                driver.cancel_prefill()
            await asyncio.sleep(CLOSE_POLL_S)

    def open_records(self) -> tuple[Placed, ...]:
        """What the running calls hold, for a control process that starts anew."""
        return _records(self._running)

    def running_on(self) -> tuple[Placed, ...]:
        """What the prefill legs hold that outlived their calls."""
        return _records(self._running_on)

    def _accept(self, call: Call) -> Handler:
        driver = ExchangeDriver(self._surroundings, call, self._over)
        self._running.add(driver)
        return driver

    def _over(self, driver: ExchangeDriver) -> None:
        self._running.discard(driver)
        if driver.exchange.phase is Phase.PREFILL_ALONE:
            self._running_on.add(driver)
        else:
            self._running_on.discard(driver)


def _records(drivers: Iterable[ExchangeDriver]) -> tuple[Placed, ...]:
    records = (driver.exchange.open_record for driver in drivers)
    return tuple(record for record in records if record is not None)
