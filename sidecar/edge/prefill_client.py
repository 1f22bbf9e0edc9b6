"""The HTTP client of the prefill legs: connections with keep-alive, a pool for each instance.

Translates what can happen on a socket into PrefillAnswered and PrefillFailed. Does not retry: that
is the exchange's decision. Cancelling a leg closes its connection, which vLLM takes for an abort.
"""

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable, Coroutine
from functools import cache
from time import monotonic
from typing import cast

from sidecar.exchange.effects import StartPrefill
from sidecar.exchange.events import PrefillAnswered, PrefillFailed
from sidecar.exchange.reasons import Reason
from sidecar.wire import http_url
from sidecar.wire.http1 import Answer, AnswerReader, BrokenAnswer, for_the_client, post_head
from sidecar.wire.http_url import HttpUrl

IDLE_S = 4.0
"""vLLM closes an idle connection after 5 s: let go first, so that no request meets the closing"""

NAME_KEPT_S = 30.0
"""a burst of legs to one name asks the name server once, and a short silence of it costs none"""

COPIED_BYTES = 16384
"""a body below it is sent in one piece with its headers"""

_OUR_FAULT = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL}
"""a connect that failed for want of something on this machine says nothing of the instance"""

End = PrefillAnswered | PrefillFailed

Resolve = Callable[[str], Coroutine[None, None, list[str]]]
"""the addresses of a name, at least one; raises OSError, UnicodeError"""


class _Connection(asyncio.Protocol):
    """To one engine, one request at a time. `on_end` of a request is called once, unless `abort`
    came first."""

    def __init__(self) -> None:
        self.idle_since = 0.0
        self._transport: asyncio.Transport
        self._reader: AnswerReader | None = None
        """of the request under way"""
        self._on_end: Callable[[Answer | BrokenAnswer], None]

    @property
    def is_open(self) -> bool:
        """It can take another request."""
        return self._reader is None and not self._transport.is_closing()

    def post(
        self,
        head: bytes,
        body: bytes,
        on_head: Callable[[int], None],
        on_end: Callable[[Answer | BrokenAnswer], None],
    ) -> None:
        """Send a request, if `is_open`. `on_head` is told the status when the answer's headers are
        there."""
        self._reader, self._on_end = AnswerReader(on_head), on_end
        if len(body) < COPIED_BYTES:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))

    def abort(self) -> None:
        """Close at once; what is not sent yet is not sent."""
        self._forget()
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        if reader is None:  # more than was asked for
            self.abort()
            return
        try:
            reader.feed(data)
        except BrokenAnswer as error:
            self._end(error)
        else:
            if reader.answer is not None:
                self._end(reader.answer)

    def eof_received(self) -> None:
        # Not when the connection is lost: that waits for a body that the other end reads no more.
        self._lose(None)

    def connection_lost(self, error: Exception | None) -> None:
        self._lose(error)

    def _lose(self, error: Exception | None) -> None:
        if self._reader is None:
            return
        try:
            self._end(BrokenAnswer(str(error)) if error is not None else self._reader.end())
        except BrokenAnswer as broken:
            self._end(broken)

    def _end(self, end: Answer | BrokenAnswer) -> None:
        on_end = self._on_end
        is_kept = isinstance(end, Answer) and end.is_kept
        if is_kept and not self._transport.get_write_buffer_size():
            self._forget()
        else:
            self.abort()
        on_end(end)

    def _forget(self) -> None:
        """The request, its body and its answer: an idle connection keeps none of them."""
        if self._reader is not None:
            self._reader.stop()
            self._reader = None
            del self._on_end


class PrefillClient:
    def __init__(self, connect_timeout_s: float, resolve: Resolve | None = None) -> None:
        self._connect_timeout_s = connect_timeout_s
        self._loop = asyncio.get_running_loop()
        self._resolve = resolve or self._getaddrinfo
        # No limit of connections: prefill legs wait at the engines, never here (design §7).
        self._idle: dict[tuple[bool, str, int], list[_Connection]] = {}
        """the youngest last"""
        self._legs: set[_Leg] = set()
        self._connecting: set[asyncio.Task[None]] = set()
        self._names: dict[str, tuple[float, asyncio.Task[list[str]]]] = {}
        """when each was looked up, and what was found"""
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
        """Also of legs under way. After it no socket is left."""
        for leg in list(self._legs):
            leg.end.cancel()
            leg.let_go()
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        for connections in self._idle.values():
            for connection in connections:
                connection.abort()
        self._idle.clear()
        tasks = [*self._connecting, *(lookup for _, lookup in self._names.values())]
        self._names.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # what was aborted is closed in the loop's next round

    def __repr__(self) -> str:
        idle = sum(map(len, self._idle.values()))
        return f"<PrefillClient: {len(self._legs)} legs, {idle} idle>"

    # --- for its legs

    def take(self, url: HttpUrl) -> _Connection | None:
        """An open connection that is not in use."""
        idle = self._idle.get(url.peer)
        while idle:
            connection = idle.pop()
            if connection.is_open:
                if monotonic() - connection.idle_since < IDLE_S:
                    return connection
                connection.abort()
        return None

    def start_connecting(self, leg: "_Leg") -> "asyncio.Task[None]":
        task = self._loop.create_task(leg.connect())
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)
        return task

    async def connect(self, url: HttpUrl) -> _Connection:
        """To whichever of its addresses answers. Raises TimeoutError, OSError, UnicodeError."""
        async with asyncio.timeout(self._connect_timeout_s):
            if not url.is_name:
                return await self._dial(url, url.host)
            addresses = await self._look_up(url.host)
            try:
                return await self._dial_one(url, addresses)
            except (OSError, asyncio.CancelledError):  # it may have moved
                self._names.pop(url.host, None)
                raise

    async def _dial_one(self, url: HttpUrl, addresses: list[str]) -> _Connection:
        share_s = self._connect_timeout_s / len(addresses)  # a silent one leaves time for others
        errors: list[OSError] = []
        for address in addresses:
            try:
                async with asyncio.timeout(share_s):
                    return await self._dial(url, address)
            except OSError as error:
                errors.append(error)
        # One that timed out may live, whatever the others say; one that refused says more than one
        # that this machine has no way to.
        raise min(errors, key=lambda e: (not isinstance(e, TimeoutError), e.errno in _OUR_FAULT))

    async def _dial(self, url: HttpUrl, address: str) -> _Connection:
        tls = (_tls(), url.host) if url.is_tls else (None, None)
        _, connection = await self._loop.create_connection(
            _Connection, address, url.port, ssl=tls[0], server_hostname=tls[1]
        )
        return connection

    async def _look_up(self, name: str) -> list[str]:
        since, lookup = self._names.get(name, (0.0, None))
        if lookup is None or monotonic() - since > NAME_KEPT_S:
            lookup = self._loop.create_task(self._resolve(name))
            self._names[name] = monotonic(), lookup
            lookup.add_done_callback(lambda task: self._looked_up(name, task))
        return await asyncio.shield(lookup)

    def _looked_up(self, name: str, lookup: "asyncio.Task[list[str]]") -> None:
        if lookup.cancelled() or lookup.exception() is not None:
            self._names.pop(name, None)

    async def _getaddrinfo(self, name: str) -> list[str]:
        found = await self._loop.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(str(address[0]) for *_, address in found))

    def keep(self, url: HttpUrl, connection: _Connection) -> None:
        connection.idle_since = monotonic()
        self._idle.setdefault(url.peer, []).append(connection)
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
        url = http_url.read(self._leg.url)
        if url is None:
            self._fail(Reason.PREFILL_REFUSED)
            return
        self._url = url
        try:
            leg = self._leg
            self._head = post_head(url.path, url.netloc, leg.headers, len(leg.body))
        except ValueError as error:
            self._break(error)
            return
        self.end.add_done_callback(self.let_go)  # also when it is cancelled
        self._limit(self._leg.timeout_s, self._too_late)
        connection = self._client.take(url)
        if connection is not None:
            self._post(connection)
        else:
            self._connecting = self._client.start_connecting(self)

    async def connect(self) -> None:
        try:
            self._post(await self._client.connect(self._url))
        except TimeoutError:  # also the kernel's, when it gave up before we did
            self._fail(Reason.PREFILL_UNREACHABLE)
        except OSError as error:
            if error.errno in _OUR_FAULT:
                self._break(error)
            else:
                self._fail(Reason.PREFILL_REFUSED)
        except UnicodeError:  # a name that is none, as "a..b"
            self._fail(Reason.PREFILL_REFUSED)
        except Exception as bug:  # noqa: BLE001  whoever waits for the leg hears of it
            self._break(bug)

    def _post(self, connection: _Connection) -> None:
        if self.end.done():  # cancelled while it connected
            connection.abort()
            return
        if not connection.is_open:  # closed, or spoken on, before it was asked anything
            connection.abort()
            self._fail(Reason.PREFILL_RESET)
            return
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
            self._client.keep(self._url, connection)
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
        said, seconds = for_the_client(headers), monotonic() - self._since
        self._finish(PrefillAnswered(status=status, body=body, headers=said, seconds=seconds))

    def _fail(self, reason: Reason) -> None:
        self._finish(PrefillFailed(reason=reason, seconds=monotonic() - self._since))

    def _finish(self, end: End) -> None:
        if not self.end.done():
            self.end.set_result(end)
            self.let_go()

    def _break(self, error: Exception) -> None:
        if not self.end.done():
            self.end.set_exception(error)
            self.let_go()

    def let_go(self, _end: "asyncio.Future[End] | None" = None) -> None:
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


@cache
def _tls() -> ssl.SSLContext:
    """Made once: it reads the machine's certificates, during which nothing else is served."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context
