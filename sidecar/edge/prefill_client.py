"""The HTTP client of the prefill legs: connections with keep-alive, a pool for each instance.

Translates what can happen on a socket into PrefillAnswered and PrefillFailed. Does not retry: that
is the exchange's decision. Cancelling a leg closes its connection, which vLLM takes for an abort.
"""

import asyncio
import errno
from collections.abc import Callable
from functools import lru_cache
from time import monotonic
from typing import NamedTuple, cast
from urllib.parse import urlsplit

from sidecar.exchange.effects import StartPrefill
from sidecar.exchange.events import PrefillAnswered, PrefillFailed
from sidecar.exchange.reasons import Reason
from sidecar.wire.http1 import Answer, AnswerReader, BrokenAnswer

IDLE_S = 4.0
"""vLLM closes an idle connection after 5 s: let go first, so that no request meets the closing"""

COPIED_BYTES = 16384
"""a body below it is sent in one piece with its headers"""

_OUR_FAULT = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL}
"""a connect that failed for want of something on this machine says nothing of the instance"""

End = PrefillAnswered | PrefillFailed


class _Place(NamedTuple):
    """Where a URL leads."""

    is_tls: bool
    host: str
    port: int
    line: str
    """the request line, and the host"""


class _Connection(asyncio.Protocol):
    """To one engine, one request at a time. `on_end` of a request is called once, unless `abort`
    came first."""

    def __init__(self) -> None:
        self.idle_since = 0.0
        self._transport: asyncio.Transport
        self._reader: AnswerReader
        self._on_end: Callable[[Answer | BrokenAnswer], None] | None = None

    @property
    def is_open(self) -> bool:
        """It can take another request."""
        return self._on_end is None and not self._transport.is_closing()

    def post(
        self,
        head: bytes,
        body: bytes,
        on_head: Callable[[int], None],
        on_end: Callable[[Answer | BrokenAnswer], None],
    ) -> None:
        """Send a request. `on_head` is told the status when the answer's headers are there."""
        self._reader, self._on_end = AnswerReader(on_head), on_end
        if len(body) < COPIED_BYTES:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))

    def abort(self) -> None:
        """Close at once; what is not sent yet is not sent."""
        self._on_end = None
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it

    def data_received(self, data: bytes) -> None:
        if self._on_end is None:  # more than was asked for
            self._transport.abort()
            return
        try:
            self._reader.feed(data)
        except BrokenAnswer as error:
            self._end(error)
        else:
            if self._reader.answer is not None:
                self._end(self._reader.answer)

    def connection_lost(self, error: Exception | None) -> None:
        if self._on_end is None:
            return
        try:
            self._end(BrokenAnswer(str(error)) if error is not None else self._reader.end())
        except BrokenAnswer as broken:
            self._end(broken)

    def _end(self, end: Answer | BrokenAnswer) -> None:
        on_end, self._on_end = self._on_end, None
        is_kept = isinstance(end, Answer) and end.is_kept
        if not is_kept or self._transport.get_write_buffer_size():
            self._transport.abort()
        if on_end is not None:
            on_end(end)


class PrefillClient:
    def __init__(self, connect_timeout_s: float) -> None:
        self._connect_timeout_s = connect_timeout_s
        self._loop = asyncio.get_running_loop()
        # No limit of connections: prefill legs wait at the engines, never here (design §7).
        self._idle: dict[tuple[str, int], list[_Connection]] = {}
        """the youngest last"""
        self._legs: set[_Leg] = set()
        self._sweep: asyncio.TimerHandle | None = None

    def send(self, leg: StartPrefill) -> "asyncio.Future[End]":
        """POST the leg and read its whole answer; cancel what is returned to close it.

        Ends with OSError when this machine has no socket for it: that is no fault of the instance,
        which would be ejected for it."""
        ours = _Leg(self, leg, self._loop)
        self._legs.add(ours)
        ours.start()
        return ours.end

    async def close(self) -> None:
        for leg in list(self._legs):
            leg.end.cancel()
        if self._sweep is not None:
            self._sweep.cancel()
        for connections in self._idle.values():
            for connection in connections:
                connection.abort()
        self._idle.clear()

    # --- for its legs

    def take(self, place: _Place) -> _Connection | None:
        """An open connection that is not in use."""
        idle = self._idle.get((place.host, place.port))
        while idle:
            connection = idle.pop()
            if connection.is_open:
                if monotonic() - connection.idle_since < IDLE_S:
                    return connection
                connection.abort()
        return None

    async def connect(self, place: _Place) -> _Connection:
        """Raises TimeoutError, OSError."""
        async with asyncio.timeout(self._connect_timeout_s):
            _, connection = await self._loop.create_connection(
                _Connection, place.host, place.port, ssl=place.is_tls or None
            )
        return connection

    def keep(self, place: _Place, connection: _Connection) -> None:
        connection.idle_since = monotonic()
        self._idle.setdefault((place.host, place.port), []).append(connection)
        if self._sweep is None:
            self._sweep = self._loop.call_later(IDLE_S, self._close_old)

    def forget(self, leg: "_Leg") -> None:
        self._legs.discard(leg)

    def _close_old(self) -> None:
        before = monotonic() - IDLE_S
        for key, connections in list(self._idle.items()):
            kept = [c for c in connections if c.is_open and c.idle_since > before]
            for connection in set(connections) - set(kept):
                connection.abort()
            if kept:
                self._idle[key] = kept
            else:
                del self._idle[key]
        self._sweep = self._loop.call_later(IDLE_S / 4, self._close_old) if self._idle else None


class _Leg:
    """One request under way. Invariant: `end` is set once, or cancelled."""

    def __init__(
        self, client: PrefillClient, leg: StartPrefill, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._client = client
        self._leg = leg
        self._loop = loop
        self.end: asyncio.Future[End] = loop.create_future()
        self._since = monotonic()
        self._connection: _Connection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._limits: list[asyncio.TimerHandle] = []
        self._status = 0

    def start(self) -> None:
        if self._leg.timeout_s <= 0:
            self._fail(Reason.PREFILL_TIMEOUT)
            return
        place = _place(self._leg.url)
        if place is None:
            self._fail(Reason.PREFILL_REFUSED)
            return
        self._place = place
        try:
            self._head = _head(place, self._leg)
        except ValueError as error:
            self._break(error)
            return
        self.end.add_done_callback(self._over)
        self._limit(self._leg.timeout_s, self._too_late)
        connection = self._client.take(place)
        if connection is not None:
            self._post(connection)
        else:
            self._connecting = self._loop.create_task(self._connect())

    async def _connect(self) -> None:
        try:
            self._post(await self._client.connect(self._place))
        except TimeoutError:
            self._fail(Reason.PREFILL_UNREACHABLE)
        except OSError as error:
            if error.errno in _OUR_FAULT:
                self._break(error)
                return
            is_late = error.errno == errno.ETIMEDOUT  # the kernel gave up before we did
            self._fail(Reason.PREFILL_UNREACHABLE if is_late else Reason.PREFILL_REFUSED)
        except Exception as bug:  # noqa: BLE001  whoever waits for the leg hears of it
            self._break(bug)

    def _post(self, connection: _Connection) -> None:
        self._connection = connection
        body = self._leg.body
        connection.post(self._head, body, self._on_status, self._on_end)

    # --- what comes

    def _on_status(self, status: int) -> None:
        self._status = status
        if self._leg.body_timeout_s is not None and 200 <= status < 300:
            self._limit(self._leg.body_timeout_s, self._without_body)

    def _on_end(self, answer: Answer | BrokenAnswer) -> None:
        connection, self._connection = self._connection, None
        if isinstance(answer, BrokenAnswer):
            self._fail(Reason.PREFILL_RESET)
            return
        if connection is not None and connection.is_open:
            self._client.keep(self._place, connection)
        body = answer.body[0] if len(answer.body) == 1 else b"".join(answer.body)
        self._answered(answer.status, body, answer.headers)

    def _too_late(self) -> None:
        self._fail(Reason.PREFILL_TIMEOUT)

    def _without_body(self) -> None:
        self._answered(self._status, None, [])

    # --- ends

    def _answered(
        self, status: int, body: bytes | None, headers: list[tuple[bytes, bytes]]
    ) -> None:
        answered = PrefillAnswered(
            status=status,
            body=body,
            headers=_for_the_client(headers),
            seconds=monotonic() - self._since,
        )
        self._finish(answered)

    def _fail(self, reason: Reason) -> None:
        self._finish(PrefillFailed(reason=reason, seconds=monotonic() - self._since))

    def _finish(self, end: End) -> None:
        if not self.end.done():
            self.end.set_result(end)
            self._let_go()

    def _break(self, error: Exception) -> None:
        if not self.end.done():
            self.end.set_exception(error)
            self._let_go()

    def _over(self, _end: "asyncio.Future[End]") -> None:
        """Also when it was cancelled."""
        self._let_go()

    def _let_go(self) -> None:
        self._client.forget(self)
        for limit in self._limits:
            limit.cancel()
        self._limits.clear()
        connecting, self._connecting = self._connecting, None
        if connecting is not None and connecting is not asyncio.current_task():
            connecting.cancel()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()

    def _limit(self, seconds: float, what: Callable[[], None]) -> None:
        self._limits.append(self._loop.call_later(seconds, what))


@lru_cache(maxsize=4096)
def _place(url: str) -> _Place | None:
    """None for what is no URL of an HTTP server."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        return None
    if parts.scheme not in ("http", "https") or not host:
        return None
    path = parts.path + (f"?{parts.query}" if parts.query else "")
    line = f"POST {path or '/'} HTTP/1.1\r\nhost: {parts.netloc}\r\n"
    return _Place(parts.scheme == "https", host, port, line)


def _head(place: _Place, leg: StartPrefill) -> bytes:
    """Raises ValueError for a header that would end early."""
    lines = [f"{name}: {value}\r\n" for name, value in leg.headers.items()]
    text = f"{place.line}content-length: {len(leg.body)}\r\n{''.join(lines)}\r\n"
    if text.count("\n") != len(lines) + 4 or text.count("\r") != len(lines) + 4:
        raise ValueError("a header with a line break")
    return text.encode()


_NOT_FOR_THE_CLIENT = frozenset(
    (
        "connection", "content-length", "date", "keep-alive",
        "proxy-authenticate", "host", "server", "set-cookie", "te", "trailer",
        "transfer-encoding", "upgrade", "via", "x-request-id",
    )
)  # fmt: skip
"""Of one connection, or said anew by the edge."""


def _for_the_client(headers: list[tuple[bytes, bytes]]) -> dict[str, str]:
    joined: dict[str, str] = {}
    for name, value in headers:
        key = name.decode("latin-1").lower()
        if key not in _NOT_FOR_THE_CLIENT:
            text = value.decode("latin-1")
            joined[key] = f"{joined[key]}, {text}" if key in joined else text
    return joined
