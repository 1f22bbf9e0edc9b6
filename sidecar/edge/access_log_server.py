"""The access log server (ALS): Envoy's entries, decoded and handed on in order.

Log streams are one for each Envoy worker and log configuration; their coming and going means
nothing.
"""

import logging
from collections.abc import AsyncIterator, Callable

import grpc
import grpc.aio

from sidecar.errors import RemoteError
from sidecar.wire import access_log

log = logging.getLogger(__name__)

EOF = grpc.aio.EOF  # type: ignore[attr-defined]  # the stubs lack it
SERVICE = "envoy.service.accesslog.v3.AccessLogService"


class AccessLogServer:
    def __init__(self, on_entry: Callable[[access_log.Entry | access_log.Attempt], None]) -> None:
        self._on_entry = on_entry

    def register(self, server: grpc.aio.Server) -> None:
        handler = grpc.stream_unary_rpc_method_handler(self._stream)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, {"StreamAccessLogs": handler}),)
        )

    async def _stream(
        self, _requests: AsyncIterator[bytes], context: "grpc.aio.ServicerContext[bytes, bytes]"
    ) -> bytes:
        while (data := await context.read()) is not EOF:
            try:
                entries = access_log.decode(data)
            except RemoteError as error:
                log.error("access log: %s", error)
                continue
            for entry in entries:
                try:
                    self._on_entry(entry)
                except Exception:  # one bad entry must not cost the others of its batch
                    log.exception("access log: %r", entry)
        return b""
