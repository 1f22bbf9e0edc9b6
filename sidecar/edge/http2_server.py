"""gRPC calls over HTTP/2 on a unix socket, for one kind of client: an Envoy on this machine.

Why our own: gRPC's library costs more for each call than all that the call is about
(docs/performance.md). What makes it small: there is one service with one method, so the header
blocks of requests are passed over unread; windows are as large as they go, as Envoy holds each body
whole before it sends it and the exchange counts it (`exchange/upload.py`). What is sent within one
turn of the loop leaves in one write.
"""

import asyncio
import contextlib
import logging
import struct
from collections import deque
from pathlib import Path
from typing import cast

from sidecar.errors import StartError
from sidecar.wire import http2
from sidecar.wire.calls import Accept, Handler
from sidecar.wire.http2 import ProtocolError

log = logging.getLogger(__name__)

BACKLOG = 1024
REPLENISH_BYTES = 1 << 30
PREAMBLE = http2.settings(
    {
        http2.HEADER_TABLE_SIZE: 0,
        http2.MAX_CONCURRENT_STREAMS: http2.WINDOW_MAX,
        http2.INITIAL_WINDOW_SIZE: http2.WINDOW_MAX,
    }
) + http2.window_update(0, http2.WINDOW_MAX - http2.DEFAULT_WINDOW)


class Http2Server:
    """`calls.Carrier`."""

    def __init__(self, accept: Accept) -> None:
        self.accept = accept
        self._connections: set[_Connection] = set()
        self._has_none = asyncio.Event()
        self._server: asyncio.Server | None = None

    async def listen(self, path: Path) -> None:
        loop = asyncio.get_running_loop()
        try:
            path.unlink(missing_ok=True)  # noqa: ASYNC240  a local file, once
            self._server = await loop.create_unix_server(
                lambda: _Connection(self), str(path), backlog=BACKLOG
            )
        except OSError as error:
            raise StartError(f"cannot listen on {path}: {error.strerror or error}") from None

    async def close(self, grace_s: float) -> None:
        if self._server is not None:
            self._server.close()
        for connection in self._connections:
            connection.refuse_more()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                while self._connections:
                    await self._has_none.wait()
        for connection in list(self._connections):
            connection.close()

    def add(self, connection: "_Connection") -> None:
        self._connections.add(connection)
        self._has_none.clear()

    def remove(self, connection: "_Connection") -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._has_none.set()


class _Call:
    """One stream of a connection."""

    __slots__ = ("connection", "handler", "have", "is_begun", "is_ended", "number", "parts",
                 "pending", "wanted", "window")  # fmt: skip

    def __init__(self, connection: "_Connection", number: int, window: int) -> None:
        self.connection = connection
        self.number = number
        self.window = window
        """bytes that the client lets us send"""
        self.handler: Handler
        self.parts: list[bytes | memoryview] = []
        """of a message that is not whole yet, `have` bytes of `wanted`"""
        self.have = 0
        self.wanted = 0
        self.pending: deque[memoryview] = deque()
        """to be sent when the windows allow it"""
        self.is_begun = False
        self.is_ended = False

    def send(self, message: bytes) -> None:
        if not self.is_ended:
            self.connection.send(self, message)

    def end(self) -> None:
        if not self.is_ended:
            self.is_ended = True
            self.connection.end(self)


class _Connection(asyncio.Protocol):
    """Invariant: a call is in `calls` until its end has been written or its client is gone."""

    def __init__(self, server: Http2Server) -> None:
        self.calls: dict[int, _Call] = {}
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._rest = b""
        """read, and no whole frame yet"""
        self._has_preface = False
        self._last = 0
        """the youngest call"""
        self._in_headers = 0
        """the call whose header block goes on; 0: none"""
        self._unreplenished = 0
        self._window = http2.DEFAULT_WINDOW
        self._first_window = http2.DEFAULT_WINDOW
        self._frame_max = http2.FRAME_MAX
        self._blocked: dict[_Call, None] = {}
        """calls with something pending, oldest first"""
        self._out: list[bytes | memoryview] = []
        self._refuses = False

    # --- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it
        self._server.add(self)
        self._write(PREAMBLE)

    def connection_lost(self, _error: Exception | None) -> None:
        self._server.remove(self)
        self._blocked.clear()
        for call in list(self.calls.values()):
            self._drop(call)

    def data_received(self, data: bytes) -> None:
        try:
            self._rest = self._read(self._rest + data if self._rest else data)
        except ProtocolError as error:
            log.error("a connection is closed: %s", error)
            self._write(http2.goaway(self._last, error.code))
            self._flush()
            self._transport.close()

    def refuse_more(self) -> None:
        """Calls from now on are for another worker; the connection ends with its last call."""
        self._refuses = True
        self._write(http2.goaway(self._last, http2.NO_ERROR))
        self._close_when_idle()

    def _close_when_idle(self) -> None:
        if self._refuses and not self.calls:
            self.close()

    def close(self) -> None:
        self._flush()
        self._transport.close()

    # --- what the client sends

    def _read(self, data: bytes) -> bytes:
        """Take all whole frames; returns the rest. Raises ProtocolError."""
        at, size = 0, len(data)
        if not self._has_preface:
            at = len(http2.PREFACE)
            if data[:at] != http2.PREFACE[:size]:
                raise ProtocolError("the client does not speak HTTP/2")
            if size < at:
                return data
            self._has_preface = True
        head = http2.FRAME_HEAD.unpack_from
        while size - at >= http2.HEAD_BYTES:
            high, low, kind, flags, number = head(data, at)
            length = high << 8 | low
            if length > http2.FRAME_MAX:
                raise ProtocolError(f"a frame of {length} bytes", http2.FRAME_SIZE_ERROR)
            begin = at + http2.HEAD_BYTES
            end = begin + length
            if end > size:
                break
            if self._in_headers and (kind, number) != (http2.CONTINUATION, self._in_headers):
                raise ProtocolError("a header block that does not go on")
            if kind == http2.DATA:
                self._on_data(number, flags, data, begin, end)
            elif kind == http2.HEADERS:
                self._on_headers(number, flags)
            else:
                self._on_control(kind, flags, number, data[begin:end])
            at = end
        return data[at:]

    def _on_headers(self, number: int, flags: int) -> None:
        if not flags & http2.END_HEADERS:
            self._in_headers = number
        call = self.calls.get(number)
        if call is None and number > self._last:
            if number % 2 == 0:
                raise ProtocolError(f"a call of number {number}")
            self._last = number
            if self._refuses:
                self._write(http2.reset(number, http2.REFUSED_STREAM))
                return
            call = _Call(self, number, self._first_window)
            self.calls[number] = call
            call.handler = self._server.accept(call)
        if call is not None and flags & http2.END_STREAM:
            self._half_closed(call)

    def _on_data(self, number: int, flags: int, data: bytes, begin: int, end: int) -> None:
        self._unreplenished += end - begin
        if self._unreplenished > REPLENISH_BYTES:
            self._write(http2.window_update(0, self._unreplenished))
            self._unreplenished = 0
        call = self.calls.get(number)
        if call is None:
            if not 0 < number <= self._last:
                raise ProtocolError(f"data of call {number}, which was not begun")
            return  # it crossed with our end
        if flags & http2.PADDED:
            data = http2.unpadded(data[begin:end], flags)
            begin, end = 0, len(data)
        self._assemble(call, data, begin, end)
        if flags & http2.END_STREAM:
            self._half_closed(call)

    def _assemble(self, call: _Call, data: bytes, begin: int, end: int) -> None:
        """Hand over every message that is whole now."""
        if not call.have and end - begin >= http2.MESSAGE_HEAD_BYTES:
            flag, size = http2.MESSAGE_HEAD.unpack_from(data, begin)
            whole = begin + http2.MESSAGE_HEAD_BYTES + size
            if whole == end and not flag:  # the usual: one message, one frame
                call.handler.on_message(data[begin + http2.MESSAGE_HEAD_BYTES : end])
                return
        if end > begin:
            call.parts.append(memoryview(data)[begin:end])
            call.have += end - begin
        while call.have >= http2.MESSAGE_HEAD_BYTES and call.have >= call.wanted:
            if not call.wanted:
                flag, size = http2.MESSAGE_HEAD.unpack(self._first_bytes(call))
                if flag:
                    raise ProtocolError("a compressed message, which was not offered")
                call.wanted = http2.MESSAGE_HEAD_BYTES + size
                continue
            joined = b"".join(call.parts) if len(call.parts) > 1 else bytes(call.parts[0])
            message, rest = joined[http2.MESSAGE_HEAD_BYTES : call.wanted], joined[call.wanted :]
            call.parts, call.have, call.wanted = [rest] if rest else [], len(rest), 0
            call.handler.on_message(message)

    def _first_bytes(self, call: _Call) -> bytes:
        size = http2.MESSAGE_HEAD_BYTES
        if len(call.parts[0]) >= size:
            return bytes(call.parts[0][:size])
        call.parts = [b"".join(call.parts)]
        return bytes(call.parts[0][:size])

    def _half_closed(self, call: _Call) -> None:
        """For Envoy that is a way to leave: it has nothing to hear any more."""
        if call.is_ended:
            return
        call.handler.on_closed()
        call.end()

    def _on_control(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if kind == http2.WINDOW_UPDATE:
            self._on_window(number, _number(payload) & http2.WINDOW_MAX)
        elif kind == http2.RST_STREAM:
            _number(payload)
            call = self.calls.get(number)
            if call is not None:
                self._drop(call)
        elif kind == http2.SETTINGS:
            if not flags & http2.ACK:
                self._on_settings(http2.read_settings(payload))
        elif kind == http2.PING:
            if len(payload) != 8:
                raise ProtocolError("a PING of another size", http2.FRAME_SIZE_ERROR)
            if not flags & http2.ACK:
                self._write(http2.frame(http2.PING, http2.ACK, 0, payload))
        elif kind == http2.CONTINUATION:
            if not self._in_headers:
                raise ProtocolError("a header block that was not begun")
            if flags & http2.END_HEADERS:
                self._in_headers = 0
        elif kind == http2.PUSH_PROMISE:
            raise ProtocolError("a client that pushes")
        # GOAWAY says what the end of the connection will; PRIORITY and unknown ones mean nothing.

    def _on_settings(self, values: dict[int, int]) -> None:
        window = values.get(http2.INITIAL_WINDOW_SIZE)
        if window is not None:
            if window > http2.WINDOW_MAX:
                raise ProtocolError("a window that is too large", http2.FLOW_CONTROL_ERROR)
            for call in self.calls.values():
                call.window += window - self._first_window
            self._first_window = window
        self._frame_max = values.get(http2.MAX_FRAME_SIZE, self._frame_max)
        self._write(http2.frame(http2.SETTINGS, http2.ACK, 0))
        self._pump()

    def _on_window(self, number: int, size: int) -> None:
        if number == 0:
            self._window += size
        elif number in self.calls:
            self.calls[number].window += size
        if self._blocked:
            self._pump()

    # --- what we send

    def send(self, call: _Call, message: bytes) -> None:
        if not call.is_begun:
            call.is_begun = True
            self._write(http2.frame(http2.HEADERS, http2.END_HEADERS, call.number, http2.RESPONSE))
        size = http2.MESSAGE_HEAD_BYTES + len(message)
        head = http2.MESSAGE_HEAD.pack(0, len(message))
        if size <= min(self._frame_max, self._window, call.window) and not call.pending:
            call.window -= size
            self._window -= size
            length = (size >> 8, size & 0xFF)
            self._write(http2.FRAME_HEAD.pack(*length, http2.DATA, 0, call.number) + head + message)
            return
        call.pending += (memoryview(head), memoryview(message))
        self._blocked[call] = None
        self._pump()

    def end(self, call: _Call) -> None:
        if not call.pending:
            self._finish(call)

    def _pump(self) -> None:
        """Send of what is pending as much as the windows allow."""
        for call in list(self._blocked):
            while call.pending:
                part = call.pending[0]
                size = min(len(part), self._frame_max, self._window, call.window)
                if size <= 0:
                    break
                call.window -= size
                self._window -= size
                length = (size >> 8, size & 0xFF)
                self._write(http2.FRAME_HEAD.pack(*length, http2.DATA, 0, call.number))
                self._write(part[:size])
                if size == len(part):
                    call.pending.popleft()
                else:
                    call.pending[0] = part[size:]
            if not call.pending:
                del self._blocked[call]
                if call.is_ended:
                    self._finish(call)

    def _finish(self, call: _Call) -> None:
        begun = call.is_begun
        flags = http2.END_HEADERS | http2.END_STREAM
        block = http2.TRAILERS_OK if begun else http2.RESPONSE + http2.TRAILERS_OK
        self._write(
            http2.frame(http2.HEADERS, flags, call.number, block)
            # Envoy's half may be open still: it need not end it.
            + http2.reset(call.number, http2.NO_ERROR)
        )
        del self.calls[call.number]
        self._close_when_idle()

    def _drop(self, call: _Call) -> None:
        """Its client is gone."""
        self.calls.pop(call.number, None)
        self._blocked.pop(call, None)
        call.pending.clear()
        if not call.is_ended:
            call.is_ended = True
            call.handler.on_closed()
        self._close_when_idle()

    def _write(self, data: bytes | memoryview) -> None:
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(data)

    def _flush(self) -> None:
        if self._out:
            out, self._out = self._out, []
            if not self._transport.is_closing():
                self._transport.writelines(out)


def _number(payload: bytes) -> int:
    """Raises ProtocolError."""
    if len(payload) != 4:
        raise ProtocolError("a frame of another size", http2.FRAME_SIZE_ERROR)
    return int(struct.unpack(">I", payload)[0])
