"""The other end of prefill legs, byte by byte; and both event loops: neither may complain."""

import asyncio
import functools
import gc
import inspect
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Self

import pytest
import uvloop
from polling import until

from sidecar.exchange.effects import StartPrefill

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"

_LOOPS = [
    pytest.param(asyncio.new_event_loop, id="asyncio"),
    pytest.param(uvloop.new_event_loop, id="uvloop"),
]


def on_both_loops(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run an async test on each; it fails too where the loop has something to complain of."""

    @pytest.mark.parametrize("loop", _LOOPS)
    @functools.wraps(test)
    def run(*, loop: Callable[[], asyncio.AbstractEventLoop], **given: Any) -> None:
        complaints: list[dict[str, Any]] = []

        async def heard() -> None:
            asyncio.get_running_loop().set_exception_handler(lambda _, it: complaints.append(it))
            await test(**given)
            gc.collect()
            await asyncio.sleep(0)

        with asyncio.Runner(loop_factory=loop) as runner:
            runner.run(heard())
        gc.collect()
        assert complaints == []

    takes = inspect.signature(test).parameters.values()
    loop = inspect.Parameter("loop", inspect.Parameter.KEYWORD_ONLY)
    run.__signature__ = inspect.Signature([*takes, loop])  # type: ignore[attr-defined]
    return run


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def leg(
    url: str,
    body: bytes = b"{}",
    *,
    timeout_s: float = 20,
    body_timeout_s: float | None = None,
    headers: dict[str, str] | None = None,
) -> StartPrefill:
    return StartPrefill(
        url=url,
        headers={"x-request-id": "e"} if headers is None else headers,
        body=body,
        timeout_s=timeout_s,
        body_timeout_s=body_timeout_s,
    )


class Line(asyncio.Protocol):
    """One connection as the peer has it. `peer.on_request` is called once a request is whole."""

    def __init__(self, peer: "Peer") -> None:
        self.peer = peer
        self.transport: asyncio.Transport
        self.heard = bytearray()
        """of the request under way"""
        self.requests: list[bytes] = []
        self.is_lost = False
        self._reads_until: int | None = None

    def say(self, *parts: bytes) -> None:
        for part in parts:
            self.transport.write(part)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.peer.lines.append(self)
        self.peer.on_line(self)

    def data_received(self, data: bytes) -> None:
        self.heard += data
        if self._reads_until is None:
            head, end, _ = bytes(self.heard).partition(b"\r\n\r\n")
            if not end:
                return
            length = head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]
            self._reads_until = len(head) + len(end) + int(length)
            self.peer.on_head(self)
        if len(self.heard) >= self._reads_until:
            self.requests.append(bytes(self.heard))
            self.heard.clear()
            self._reads_until = None
            self.peer.on_request(self)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, _error: Exception | None) -> None:
        self.is_lost = True


Does = Callable[[Line], object]


class Peer:
    """Listens at `url` while it is entered."""

    def __init__(
        self,
        on_request: Does | bytes = OK,
        *,
        on_line: Does = lambda _: None,
        on_head: Does = lambda _: None,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: Any = None,
    ) -> None:
        if isinstance(on_request, bytes):
            said = on_request
            self.on_request: Does = lambda line: line.say(said)
        else:
            self.on_request = on_request
        self.on_line, self.on_head = on_line, on_head
        self.lines: list[Line] = []
        self.port = port
        self._host, self._tls = host, tls

    @property
    def url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{'https' if self._tls else 'http'}://{host}:{self.port}/v1/completions"

    @property
    def open_lines(self) -> list[Line]:
        return [line for line in self.lines if not line.is_lost]

    @property
    def requests(self) -> list[bytes]:
        return [request for line in self.lines for request in line.requests]

    async def __aenter__(self) -> Self:
        self._server = await asyncio.get_running_loop().create_server(
            lambda: Line(self), self._host, self.port, backlog=2048, ssl=self._tls
        )
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for line in self.open_lines:
            line.transport.abort()
        await until(lambda: not self.open_lines)
