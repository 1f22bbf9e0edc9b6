"""gRPC calls through gRPC's own library: slower than `http2_server`, and others keep it.

Raw bytes in and out, no generated servicer.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio

from sidecar.errors import StartError
from sidecar.wire.calls import Accept, Handler

log = logging.getLogger(__name__)

EOF = grpc.aio.EOF  # type: ignore[attr-defined]  # the stubs lack it
MANY = 1_000_000
"""gRPC's own defaults cancel calls at random from 1000 pending on; a burst must only wait"""

OPTIONS = [
    ("grpc.server.max_pending_requests", MANY),
    ("grpc.server.max_pending_requests_hard_limit", MANY),
    ("grpc.max_concurrent_streams", MANY),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.so_reuseport", 0),
]

Context = grpc.aio.ServicerContext


class GrpcioServer:
    """`calls.Carrier`."""

    def __init__(self, accept: Accept, service: str, method: str) -> None:
        self._accept = accept
        self._server = grpc.aio.server(options=OPTIONS)
        handler = grpc.stream_stream_rpc_method_handler(self._serve)
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service, {method: handler}),)
        )

    async def listen(self, path: Path) -> None:
        try:
            path.unlink(missing_ok=True)  # noqa: ASYNC240  a local file, once
            self._server.add_insecure_port(f"unix:{path}")
        except (OSError, RuntimeError) as error:  # grpc's own is a bare RuntimeError
            raise StartError(f"cannot listen on {path}: {error}") from None
        await self._server.start()

    async def close(self, grace_s: float) -> None:
        await self._server.stop(grace_s)

    async def _serve(
        self, _requests: AsyncIterator[bytes], context: "Context[bytes, bytes]"
    ) -> None:
        call = _Call()
        handler = self._accept(call)
        reading = asyncio.create_task(_read(context, call, handler))
        try:
            await call.write_to(context)
        finally:  # also when the client resets it: that cancels this task
            reading.cancel()
            _tell_closed(call, handler)


async def _read(context: "Context[bytes, bytes]", call: "_Call", handler: Handler) -> None:
    while True:
        message = await context.read()
        if call.is_ended:
            return
        if message is EOF:
            _tell_closed(call, handler)
            call.finish()
            return
        try:
            handler.on_message(message)
        except Exception as error:  # noqa: BLE001  a bug costs its call, no other
            call.fail(error)
            return


def _tell_closed(call: "_Call", handler: Handler) -> None:
    if call.is_ended:
        return
    call.is_ended = True
    try:
        handler.on_closed()
    except Exception:
        log.exception("a call failed at its end")


class _Call:
    """`calls.Call`."""

    def __init__(self) -> None:
        self.is_ended = False
        self._queue: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()

    def send(self, first: bytes, *others: bytes) -> None:
        if not self.is_ended:
            self._queue.put_nowait(b"".join((first, *others)))

    def end(self) -> None:
        if not self.is_ended:
            self.is_ended = True
            self.finish()

    def finish(self) -> None:
        self._queue.put_nowait(None)

    def fail(self, error: Exception) -> None:
        """The library logs it, and the client gets an error."""
        self._queue.put_nowait(error)

    async def write_to(self, context: "Context[bytes, bytes]") -> None:
        """Until its end. Raises what it failed with."""
        while True:
            message = await self._queue.get()
            if message is None:
                return
            if isinstance(message, Exception):
                raise message
            await context.write(message)
