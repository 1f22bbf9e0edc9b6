"""gRPC calls over HTTP/2 on a unix socket, for one kind of client: an Envoy on this machine.

Why our own: gRPC's library costs more for each call than all that the call is about
(docs/performance.md). What makes it small: there is one service with one method, so the header
blocks of requests are passed over unread; windows are as large as they go, as Envoy holds each body
whole before it sends it and the exchange counts it (`exchange/upload.py`). What is sent within one
turn of the loop leaves in one write.

What it holds for that client is bounded by the client's own limits: of requests, by the bodies that
Envoy buffers; of replies, by the windows that Envoy gives, and behind them by what calls send; of
frames that are answers to frames, by `UNWRITTEN_BYTES` and one read.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import cast

from sidecar.errors import StartError
from sidecar.wire import http2
from sidecar.wire.calls import Accept, Handler
from sidecar.wire.http2 import ProtocolError

log = logging.getLogger(__name__)

BACKLOG = 1024
REPLENISH_BYTES = 1 << 30
UNWRITTEN_BYTES = 16 << 20
"""with so much that the client has not taken, nothing more is read from it: more than one reply"""
ABORT_AFTER_S = 0.2
"""for what was written to a client that is closed: it may not read"""
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
        self.connections: set[Connection] = set()
        self._has_none = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._is_closing = False

    async def listen(self, path: Path) -> None:
        loop = asyncio.get_running_loop()
        try:
            path.unlink(missing_ok=True)  # noqa: ASYNC240  a local file, once
            self._server = await loop.create_unix_server(
                lambda: Connection(self), str(path), backlog=BACKLOG
            )
        except OSError as error:
            raise StartError(f"cannot listen on {path}: {error.strerror or error}") from None

    async def close(self, grace_s: float) -> None:
        self._is_closing = True
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.refuse_more()
        await self._until_none(grace_s)
        for connection in list(self.connections):
            connection.close()
        await self._until_none(ABORT_AFTER_S)
        for connection in list(self.connections):
            connection.abort()

    async def _until_none(self, limit_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while self.connections:
                    await self._has_none.wait()

    def add(self, connection: "Connection") -> None:
        self.connections.add(connection)
        self._has_none.clear()
        if self._is_closing:  # it was accepted just before
            connection.refuse_more()

    def remove(self, connection: "Connection") -> None:
        self.connections.discard(connection)
        if not self.connections:
            self._has_none.set()


class _Call:
    """One stream of a connection."""

    __slots__ = ("connection", "handler", "is_begun", "is_ended", "messages", "number", "pending",
                 "unreplenished", "window")  # fmt: skip

    def __init__(self, connection: "Connection", number: int, window: int) -> None:
        self.connection = connection
        self.number = number
        self.window = window
        """bytes that the client lets us send"""
        self.handler: Handler
        self.messages = http2.Messages()
        self.unreplenished = 0
        self.pending: deque[memoryview] = deque()
        """to be sent when the windows allow it; none is empty"""
        self.is_begun = False
        self.is_ended = False

    def send(self, first: bytes, *others: bytes) -> None:
        if not self.is_ended:
            self.connection.send(self, first, *others)

    def end(self) -> None:
        if not self.is_ended:
            self.is_ended = True
            self.connection.end(self)


class Connection(asyncio.Protocol):
    """Invariants: a call is in `calls` until its end has been written or its client is gone, and in
    `blocked` while it has something pending."""

    def __init__(self, server: Http2Server) -> None:
        self.calls: dict[int, _Call] = {}
        self.blocked: dict[_Call, None] = {}
        """whose turn is next comes first"""
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport
        self._frames = http2.Frames()
        self._last = 0
        """the youngest call"""
        self._unreplenished = 0
        self._window = http2.DEFAULT_WINDOW
        self._first_window = http2.DEFAULT_WINDOW
        self._frame_max = http2.FRAME_MAX
        self._has_sent_headers = False
        self._out: list[bytes | memoryview] = []
        self._refuses = False

    # --- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it
        self._transport.set_write_buffer_limits(UNWRITTEN_BYTES)
        self._write(PREAMBLE)
        self._server.add(self)

    def connection_lost(self, _error: Exception | None) -> None:
        self._server.remove(self)
        self._drop_all()

    def pause_writing(self) -> None:
        """What it goes on to ask would be answered into memory."""
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        try:
            for kind, flags, number, source, begin, end in self._frames.take(data):
                if kind == http2.DATA:
                    self._on_data(number, flags, source, begin, end)
                elif kind == http2.HEADERS:
                    self._on_headers(number, flags)
                else:
                    self._on_control(kind, flags, number, source[begin:end])
        except ProtocolError as error:
            log.error("a connection is closed: %s", error)
            self._write(http2.goaway(self._last, error.code))
            self.close()

    def refuse_more(self) -> None:
        """Calls from now on are for another worker; the connection ends with its last call."""
        self._refuses = True
        self._write(http2.goaway(self._last, http2.NO_ERROR))
        self._close_when_idle()

    def close(self) -> None:
        """Behind what was sent; what runs is over."""
        self._flush()
        self._transport.close()
        self._drop_all()

    def abort(self) -> None:
        self._transport.abort()

    def _close_when_idle(self) -> None:
        if self._refuses and not self.calls:
            self.close()

    # --- what the client sends

    def _is_idle(self, number: int) -> bool:
        """No call was ever begun with it."""
        return number > self._last or number % 2 == 0

    def _on_headers(self, number: int, flags: int) -> None:
        if number % 2 == 0:
            raise ProtocolError(f"a call of number {number}")
        if number > self._last:
            self._last = number
            if self._refuses:
                self._write(http2.reset(number, http2.REFUSED_STREAM))
                return
            self._begin(number)
        elif not flags & http2.END_STREAM:  # no trailers, then
            raise ProtocolError(f"call {number} is begun again")
        if flags & http2.END_STREAM and number in self.calls:
            self._half_closed(self.calls[number])

    def _begin(self, number: int) -> None:
        call = self.calls[number] = _Call(self, number, self._first_window)
        try:
            call.handler = self._server.accept(call)
        except Exception:
            log.exception("call %d could not begin", number)
            call.is_ended = True
            self._fail(call)

    def _on_data(self, number: int, flags: int, data: bytes, begin: int, end: int) -> None:
        size = end - begin
        self._unreplenished += size
        if self._unreplenished > REPLENISH_BYTES:
            self._write(http2.window_update(0, self._unreplenished))
            self._unreplenished = 0
        if flags & http2.PADDED:
            data = http2.unpadded(data[begin:end], flags)
            begin, end = 0, len(data)
        call = self.calls.get(number)
        if call is None:
            if self._is_idle(number):
                raise ProtocolError(f"data of call {number}, which was not begun")
            return  # it crossed with our end
        call.unreplenished += size
        if call.unreplenished > REPLENISH_BYTES:
            self._write(http2.window_update(number, call.unreplenished))
            call.unreplenished = 0
        messages = () if call.is_ended else call.messages.take(data, begin, end)
        try:
            for message in messages:
                if not call.is_ended:  # with the message before
                    call.handler.on_message(message)
        except Exception:  # a bug costs its call, no other
            log.exception("call %d failed", call.number)
            self._fail(call)
        if flags & http2.END_STREAM:
            self._half_closed(call)

    def _half_closed(self, call: _Call) -> None:
        """For Envoy that is a way to leave: it has nothing to hear any more."""
        if not call.is_ended:
            self._tell_closed(call)
            self.end(call)

    def _on_control(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if kind == http2.WINDOW_UPDATE:
            self._on_window(number, http2.read_window(payload))
        elif kind == http2.RST_STREAM:
            if self._is_idle(number):
                raise ProtocolError(f"call {number} is reset, which was not begun")
            if number in self.calls:
                self._drop(self.calls[number])
        elif kind == http2.SETTINGS:
            if not flags & http2.ACK:
                self._on_settings(http2.read_settings(payload))
        elif kind == http2.PING and not flags & http2.ACK:
            self._write(http2.frame(http2.PING, http2.ACK, 0, payload))
        # GOAWAY says what the end of the connection will; the others mean nothing to us.

    def _on_settings(self, values: dict[int, int]) -> None:
        window = values.get(http2.INITIAL_WINDOW_SIZE, self._first_window)
        for call in self.calls.values():
            call.window = http2.widened(call.window, window - self._first_window)
        self._first_window = window
        self._frame_max = values.get(http2.MAX_FRAME_SIZE, self._frame_max)
        self._write(http2.frame(http2.SETTINGS, http2.ACK, 0))
        self._pump(self.blocked)

    def _on_window(self, number: int, size: int) -> None:
        if number == 0:
            self._window = http2.widened(self._window, size)
            self._pump(self.blocked)
        elif number in self.calls:
            call = self.calls[number]
            call.window = http2.widened(call.window, size)
            if call in self.blocked:
                self._pump((call,))
        elif self._is_idle(number):
            raise ProtocolError(f"a window of call {number}, which was not begun")

    # --- what we send

    def send(self, call: _Call, first: bytes, *others: bytes) -> None:
        if not call.is_begun:
            call.is_begun = True
            self._send_headers(call, http2.END_HEADERS, http2.RESPONSE)
        length = len(first) + sum(map(len, others))
        head = http2.MESSAGE_HEAD.pack(0, length)
        size = http2.MESSAGE_HEAD_BYTES + length
        if size <= min(self._frame_max, self._window, call.window) and not call.pending:
            call.window -= size
            self._window -= size
            frame = http2.FRAME_HEAD.pack(size >> 8, size & 0xFF, http2.DATA, 0, call.number)
            self._write(b"".join((frame, head, first, *others)))
            return
        call.pending += [memoryview(part) for part in (head + first, *others) if part]
        self.blocked.setdefault(call)
        self._pump((call,))

    def end(self, call: _Call) -> None:
        if not call.pending:
            self._finish(call)

    def _pump(self, calls: Iterable[_Call]) -> None:
        """Send of what they have pending as much as the windows allow, a frame each in turn."""
        turns = deque(calls)
        while turns and self._window > 0:
            call = turns.popleft()
            part = call.pending[0]
            size = min(len(part), self._frame_max, self._window, call.window)
            if size <= 0:
                continue
            call.window -= size
            self._window -= size
            self._write(http2.FRAME_HEAD.pack(size >> 8, size & 0xFF, http2.DATA, 0, call.number))
            self._write(part[:size])
            if size == len(part):
                call.pending.popleft()
            else:
                call.pending[0] = part[size:]
            del self.blocked[call]
            if call.pending:
                self.blocked[call] = None
                turns.append(call)
            elif call.is_ended:
                self._finish(call)

    def _finish(self, call: _Call) -> None:
        block = http2.TRAILERS_OK if call.is_begun else http2.RESPONSE + http2.TRAILERS_OK
        self._send_headers(call, http2.END_HEADERS | http2.END_STREAM, block)
        # Envoy's half may be open still: it need not end it.
        self._write(http2.reset(call.number, http2.NO_ERROR))
        self._drop(call)

    def _send_headers(self, call: _Call, flags: int, block: bytes) -> None:
        if not self._has_sent_headers:
            self._has_sent_headers = True
            block = http2.NO_TABLE + block
        self._write(http2.frame(http2.HEADERS, flags, call.number, block))

    def _fail(self, call: _Call) -> None:
        self._write(http2.reset(call.number, http2.INTERNAL_ERROR))
        self._drop(call)

    def _drop(self, call: _Call) -> None:
        """It is over, or its client is gone."""
        self.calls.pop(call.number, None)
        self.blocked.pop(call, None)
        call.pending.clear()
        self._tell_closed(call)
        self._close_when_idle()

    def _drop_all(self) -> None:
        for call in list(self.calls.values()):
            self._drop(call)

    def _tell_closed(self, call: _Call) -> None:
        if call.is_ended:
            return
        call.is_ended = True
        try:
            call.handler.on_closed()
        except Exception:
            log.exception("call %d failed at its end", call.number)

    def _write(self, data: bytes | memoryview) -> None:
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(data)

    def _flush(self) -> None:
        if self._out:
            out, self._out = self._out, []
            if not self._transport.is_closing():
                self._transport.writelines(out)
