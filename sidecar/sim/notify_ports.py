"""An engine's notify ports: a ZMQ ROUTER each, which hears and never answers.

One for each data-parallel rank, or, with one such rank, for each tensor-parallel rank. A message
that vLLM's listener cannot handle ends the port for this life (protocol e): it is closed.
"""

import asyncio
import socket
from collections.abc import Callable
from functools import partial

import zmq

from sidecar.sim.core import Core
from sidecar.sim.notify_messages import NotifyKiller, NotifyMessage, read_notify
from sidecar.sim.options import Address, Rank

BACKLOG = 4096


class NotifyPorts:
    """All notify ports of one life. `hear` gets each message; it may raise NotifyKiller too."""

    def __init__(self, core: Core, hear: Callable[[Rank, NotifyMessage], None]) -> None:
        self._core = core
        self._hear = hear
        self._open: dict[int, zmq.Socket[bytes]] = {}

    def listen(self, index: int, bound: socket.socket) -> None:
        """Serve one port on a bound socket, which ZMQ owns from now on."""
        router = self._core.zmq.socket(zmq.ROUTER)
        router.setsockopt(zmq.LINGER, 0)
        router.setsockopt(zmq.RCVHWM, 0)
        host, port = bound.getsockname()[:2]
        router.setsockopt(zmq.IPV6, int(bound.family == socket.AF_INET6))
        bound.listen(BACKLOG)
        router.setsockopt(zmq.USE_FD, bound.detach())
        router.bind(f"tcp://{Address(host, port)}")
        self._open[index] = router
        receive = partial(self._receive, index, router)
        asyncio.get_running_loop().add_reader(router.FD, receive)
        # The descriptor tells of changes alone: what came before it was watched is read here.
        receive()

    def close(self) -> None:
        """Close every port."""
        for index in list(self._open):
            self._close(index)

    def _receive(self, index: int, router: "zmq.Socket[bytes]") -> None:
        """Read all there is: the descriptor stays silent until more has come."""
        while not router.closed:
            try:
                frames = router.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            options = self._core.options
            try:
                message = read_notify(frames, options.role, options.release)
                self._hear(self._rank_of(index), message)
            except NotifyKiller as killer:
                self._core.counters.errors[killer.kind] += 1
                self._core.dead_notify_ranks.add(index)
                self._close(index)

    def _rank_of(self, index: int) -> Rank:
        return Rank(index, 0) if self._core.options.dp_size > 1 else Rank(0, index)

    def _close(self, index: int) -> None:
        router = self._open.pop(index)
        asyncio.get_running_loop().remove_reader(router.FD)
        router.close()
