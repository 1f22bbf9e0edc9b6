"""Engine-to-engine links: length-prefixed messages on persistent, multiplexed TCP connections.

Knows frames and calls, not what a message means. Every call ends: with a reply, or with
LinkError when the peer cannot be reached or goes away.
"""

import asyncio
import socket
from collections.abc import Callable

import msgspec

from sidecar.sim.connection import reset_transport
from sidecar.sim.messages import AnyMessage, Reply
from sidecar.sim.options import Address

MAX_FRAME_BYTES = 1 << 28
CONNECT_TIMEOUT_S = 5.0
_HEADER_BYTES = 4
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(AnyMessage).decode


class LinkError(Exception):
    """The peer could not be reached, or went away before it answered."""


class _Frames(asyncio.Protocol):
    """Cuts the byte stream into messages; a frame that cannot be read closes the connection."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self.transport = transport  # type: ignore[assignment]  # uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        at = 0
        while len(self._buffer) - at >= _HEADER_BYTES:
            size = int.from_bytes(self._buffer[at : at + _HEADER_BYTES], "big")
            end = at + _HEADER_BYTES + size
            if size > MAX_FRAME_BYTES:
                self.close()
                return
            if len(self._buffer) < end:
                break
            try:
                message = _decode(self._buffer[at + _HEADER_BYTES : end])
            except msgspec.DecodeError:
                self.close()
                return
            at = end
            self.message_received(message)
        del self._buffer[:at]

    def message_received(self, message: AnyMessage) -> None:
        raise NotImplementedError

    def send(self, message: AnyMessage) -> None:
        if self.transport is not None and not self.transport.is_closing():
            payload = _encode(message)
            self.transport.write(len(payload).to_bytes(_HEADER_BYTES, "big") + payload)

    def close(self) -> None:
        if self.transport is not None:
            self.transport.close()


class _Answering(_Frames):
    """The listening side: one reply for each message. It is in `open_ones` while it lives."""

    def __init__(self, answer: Callable[[AnyMessage], Reply], open_ones: "set[_Answering]") -> None:
        super().__init__()
        self._answer = answer
        self._open_ones = open_ones

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._open_ones.add(self)

    def connection_lost(self, _exc: Exception | None) -> None:
        self._open_ones.discard(self)

    def message_received(self, message: AnyMessage) -> None:
        self.send(self._answer(message))


class _Calling(_Frames):
    """The dialling side: open calls by number."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: dict[int, asyncio.Future[Reply]] = {}
        self.is_lost = False

    def call(self, message: AnyMessage) -> asyncio.Future[Reply]:
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._calls[message.call] = future
        self.send(message)
        return future

    def message_received(self, message: AnyMessage) -> None:
        future = self._calls.pop(message.call, None)
        if isinstance(message, Reply) and future is not None and not future.done():
            future.set_result(message)

    def connection_lost(self, _exc: Exception | None) -> None:
        self.is_lost = True
        for future in self._calls.values():
            if not future.done():
                future.set_exception(LinkError("the peer closed the link"))
        self._calls.clear()


class Links:
    """The dialled connections of one engine, one for each peer address."""

    def __init__(self) -> None:
        self._connections: dict[Address, asyncio.Task[_Calling]] = {}
        self._next_call = 0

    def next_call(self) -> int:
        """A call number no other call of this engine has."""
        self._next_call += 1
        return self._next_call

    async def call(self, peer: Address, message: AnyMessage) -> Reply:
        """Send one message and wait for its reply; raises LinkError."""
        connection = self._connections.get(peer)
        if connection is None or (connection.done() and _is_lost(connection)):
            connection = asyncio.create_task(_connect(peer))
            self._connections[peer] = connection
        # Shielded: callers share the connect, and one that leaves must not end it for all.
        link = await asyncio.shield(connection)
        if link.is_lost:
            raise LinkError(f"{peer} closed the link")
        return await link.call(message)

    def close(self) -> None:
        """Reset every connection; open calls end with LinkError."""
        for connection in self._connections.values():
            if not connection.done():
                connection.cancel()
            elif not _is_lost(connection):
                reset_transport(connection.result().transport)


def _is_lost(connection: asyncio.Task[_Calling]) -> bool:
    if connection.cancelled() or connection.exception() is not None:
        return True
    return connection.result().is_lost


async def _connect(peer: Address) -> _Calling:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, protocol = await loop.create_connection(_Calling, peer.host, peer.port)
    except (OSError, TimeoutError, OverflowError) as error:
        raise LinkError(f"cannot reach {peer}: {error}") from error
    return protocol


class LinkServer:
    """Answers every message that comes in on one bound socket, until closed."""

    def __init__(self, answer: Callable[[AnyMessage], Reply]) -> None:
        self._answer = answer
        self._open: set[_Answering] = set()
        self._server: asyncio.AbstractServer | None = None

    async def listen(self, listener: socket.socket) -> None:
        """Start; the socket is closed with the server."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Answering(self._answer, self._open), sock=listener, backlog=4096
        )

    def close(self) -> None:
        """Stop listening and reset every connection."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._open):
            reset_transport(connection.transport)
