"""A TCP connection's end as a peer feels it: flushed, dropped, reset."""

import asyncio
import socket
import struct

from aiohttp import web

FLUSH_POLL_S = 0.001
_LINGER_0 = struct.pack("ii", 1, 0)


def reset_transport(transport: asyncio.BaseTransport | None) -> None:
    """Close with RST in place of FIN; what was not sent yet is lost."""
    if transport is None:
        return
    tcp = transport.get_extra_info("socket")
    if tcp is not None and not transport.is_closing():
        tcp.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_0)
    abort = getattr(transport, "abort", transport.close)
    abort()


def reset(request: web.Request) -> ConnectionResetError:
    """Reset the client's connection; returns what ends the handler."""
    reset_transport(request.transport)
    return ConnectionResetError("sim: a fault that was asked for")


def drop(request: web.Request) -> ConnectionResetError:
    """Close the client's connection as it stands; returns what ends the handler."""
    if request.transport is not None:
        request.transport.abort()
    return ConnectionResetError("sim: a fault that was asked for")


async def flush(request: web.Request) -> None:
    """Return once the kernel has all that was written, or the client has left."""
    transport = request.transport
    # By what it can do: uvloop's transports are no subclasses of asyncio's.
    # Polled: a transport does not say when its buffer is empty.
    while transport and not transport.is_closing() and transport.get_write_buffer_size():  # noqa: ASYNC110
        await asyncio.sleep(FLUSH_POLL_S)
