"""Tells other engines' notify ports: a ZMQ DEALER for each address, kept for the life, as in vLLM.

Nobody answers, so nobody knows whether a message arrived; what an absent peer was told waits and is
delivered if it comes back.
"""

import zmq

from sidecar.sim.counters import Counters
from sidecar.sim.options import Address


class Notifier:
    """The notify sockets that one life has dialled."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", counters: Counters) -> None:
        self._context = context
        self._counters = counters
        self._dealers: dict[Address, zmq.Socket[bytes]] = {}

    def tell(self, host: str, ports: range, payload: bytes) -> None:
        """Send one message to each port; an address that no socket takes is counted."""
        for port in ports:
            if not 0 < port < 65536:  # ZMQ would take it modulo 65536
                self._counters.errors["notify_unsent"] += 1
                continue
            try:
                self._dealer(Address(host, port)).send(payload, zmq.NOBLOCK)
            except zmq.ZMQError:
                self._counters.errors["notify_unsent"] += 1

    def close(self) -> None:
        """Forget all that was not delivered."""
        for dealer in self._dealers.values():
            dealer.close()

    def _dealer(self, peer: Address) -> "zmq.Socket[bytes]":
        dealer = self._dealers.get(peer)
        if dealer is None:
            dealer = self._context.socket(zmq.DEALER)
            dealer.setsockopt(zmq.LINGER, 0)
            dealer.setsockopt(zmq.SNDHWM, 0)
            dealer.setsockopt(zmq.IPV6, int(":" in peer.host))
            try:
                dealer.connect(f"tcp://{peer}")
            except zmq.ZMQError:
                dealer.close()
                raise
            self._dealers[peer] = dealer
        return dealer


def rank_ports(first: int, rank: int, dp_size: int, tp_size: int) -> range:
    """The notify ports of one data-parallel rank of an engine: one for each tensor-parallel rank.

    Both sizes above 1 collide in vLLM (protocol d); here such a rank has one port.
    """
    if dp_size > 1:
        return range(first + rank, first + rank + 1)
    return range(first, first + max(1, tp_size))
