"""Sends notices to the notify ports of engines, so that they free KV blocks (protocol e).

Knows bytes and addresses only; what may be sent, and to whom, is decided before. A notice is given
to a connection that stands, never queued for an engine that is away: its next life would hear of
transfers that it never had.
"""

import asyncio
import contextlib
from collections.abc import Iterable

import zmq
import zmq.asyncio

CONNECT_S = 5.0
"""for a connection to stand; who wants to wait longer looks anew whom it would tell"""
LINGER_MS = 2000


class _Peer:
    def __init__(self, socket: zmq.asyncio.Socket) -> None:
        self.socket = socket
        self.users = 0


class KvNotifier:
    """One connection an address, for as long as something is to be sent there."""

    def __init__(self, connect_s: float = CONNECT_S) -> None:
        self._connect_s = connect_s
        self._context = zmq.asyncio.Context()
        self._peers: dict[str, _Peer] = {}

    def __repr__(self) -> str:
        return f"<KvNotifier {len(self._peers)} peers>"

    async def send(self, addresses: Iterable[str], payload: bytes) -> bool:
        """One frame to each of `tcp://host:port`; whether all took it. Never raises but
        CancelledError."""
        sent = [self._send(address, payload) for address in addresses]
        return all(await asyncio.gather(*sent))

    async def _send(self, address: str, payload: bytes) -> bool:
        peer = self._peers.get(address)
        if peer is None:
            try:
                peer = self._peers[address] = _Peer(self._connect(address))
            except zmq.ZMQError:  # no file or socket is left for it
                return False
        peer.users += 1
        try:
            async with asyncio.timeout(self._connect_s):
                await peer.socket.send(payload)
            return True
        except (TimeoutError, zmq.ZMQError):
            return False
        finally:
            peer.users -= 1
            if not peer.users:
                del self._peers[address]
                peer.socket.close()

    def _connect(self, address: str) -> zmq.asyncio.Socket:
        socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.IMMEDIATE, 1)  # no queue without a connection
        socket.setsockopt(zmq.LINGER, LINGER_MS)
        socket.setsockopt(zmq.RECONNECT_IVL, 200)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 2000)
        if address.startswith("tcp://["):
            socket.setsockopt(zmq.IPV6, 1)
        with contextlib.suppress(zmq.ZMQError):  # not an address: then nothing is ever sent there
            socket.connect(address)
        return socket

    def close(self) -> None:
        """What was handed to a connection may still go out for `LINGER_MS`."""
        for peer in self._peers.values():
            peer.socket.close()
        self._peers.clear()
        self._context.term()
