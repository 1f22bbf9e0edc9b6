"""The prefill client against real sockets: every way a leg can end has its reason."""

import asyncio
import errno
import resource
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from time import monotonic

import msgspec
import pytest
import pytest_asyncio
from aiohttp import web
from multidict import CIMultiDict
from polling import until

from sidecar.edge.prefill_client import PrefillClient, _Connection
from sidecar.exchange.effects import StartPrefill
from sidecar.exchange.events import PrefillAnswered, PrefillFailed
from sidecar.exchange.reasons import Reason
from sidecar.wire.http_url import HttpUrl

CONNECT_LIMIT_S = 1.0
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def leg(url: str, *, timeout_s: float = 5, body_timeout_s: float | None = None) -> StartPrefill:
    headers = {"content-type": "application/json", "x-request-id": "e"}
    return StartPrefill(
        url=url, headers=headers, body=b"{}", timeout_s=timeout_s, body_timeout_s=body_timeout_s
    )


@pytest_asyncio.fixture
async def client() -> AsyncIterator[PrefillClient]:
    made = PrefillClient(CONNECT_LIMIT_S)
    yield made
    await made.close()


class Engine:
    """An HTTP server that remembers what it was asked, or a raw one by `handler`."""

    def __init__(self) -> None:
        self.requests: list[tuple[dict[str, str], bytes]] = []
        self.connections: set[object] = set()
        self.answer: Callable[[], web.StreamResponse] = lambda: web.json_response({"ok": 1})
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((dict(request.headers), await request.read()))
        self.connections.add(request.transport)
        return self.answer()


@pytest_asyncio.fixture
async def engine() -> AsyncIterator[Engine]:
    made = Engine()
    app = web.Application()
    app.router.add_post("/v1/completions", made.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=1024)
    await site.start()
    host, port = runner.addresses[0][:2]
    made.url = f"http://{host}:{port}/v1/completions"
    yield made
    await runner.cleanup()


@pytest_asyncio.fixture
async def raw() -> AsyncIterator[Callable[[Handler], Awaitable[str]]]:
    """Makes servers on bare sockets."""
    servers: list[asyncio.Server] = []

    async def serve(handler: Handler) -> str:
        server = await asyncio.start_server(handler, "127.0.0.1", 0)
        servers.append(server)
        return f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/completions"

    yield serve
    for server in servers:
        server.close()


async def read_request(reader: asyncio.StreamReader) -> None:
    await reader.readuntil(b"\r\n\r\n")


@pytest.mark.asyncio
async def test_the_answer_is_handed_on_whole(client: PrefillClient, engine: Engine) -> None:
    """Status, body, content type and time; the leg went out with its headers and nothing more."""
    answered = await client.send(leg(engine.url))
    assert isinstance(answered, PrefillAnswered)
    assert (answered.status, answered.body) == (200, b'{"ok": 1}')
    assert answered.headers["content-type"].startswith("application/json")
    assert 0 < answered.seconds < 5
    ((headers, body),) = engine.requests
    assert body == b"{}"
    assert {k.lower() for k in headers} == {
        "host",
        "content-type",
        "content-length",
        "x-request-id",
    }


@pytest.mark.asyncio
async def test_a_leg_without_a_type_goes_out_without_one(
    client: PrefillClient, engine: Engine
) -> None:
    """What decode gets, prefill gets: one must not refuse what the other took."""
    await client.send(msgspec.structs.replace(leg(engine.url), headers={"x-request-id": "e"}))
    ((headers, _),) = engine.requests
    assert "content-type" not in {k.lower() for k in headers}


@pytest.mark.asyncio
async def test_headers_that_are_for_the_client_come_along(
    client: PrefillClient, engine: Engine
) -> None:
    """Not those of this connection, nor those that the edge says itself."""
    several = [("X-Ratelimit-Left", "3"), ("Retry-After", "7"), ("Vary", "a"), ("Vary", "b")]
    hidden = [("Connection", "close"), ("Server", "x"), ("X-Request-Id", "theirs")]
    engine.answer = lambda: web.Response(
        status=429, body=b"slow", headers=CIMultiDict([*several, *hidden])
    )
    answered = await client.send(leg(engine.url))
    assert isinstance(answered, PrefillAnswered)
    answered.headers.pop("content-type")
    assert answered.headers == {"x-ratelimit-left": "3", "retry-after": "7", "vary": "a, b"}


@pytest.mark.asyncio
@pytest.mark.parametrize("status", [400, 429, 500, 503, 307])
async def test_every_status_is_an_answer(
    client: PrefillClient, engine: Engine, status: int
) -> None:
    """Also a redirect, which is not followed."""
    engine.answer = lambda: web.Response(status=status, body=b"why", headers={"location": "/x"})
    answered = await client.send(leg(engine.url, body_timeout_s=1))
    assert isinstance(answered, PrefillAnswered)
    assert (answered.status, answered.body) == (status, b"why")
    assert len(engine.requests) == 1


@pytest.mark.asyncio
async def test_connections_are_kept_and_not_limited(client: PrefillClient, engine: Engine) -> None:
    """One after another use one; many at once use many."""
    for _ in range(3):
        await client.send(leg(engine.url))
    assert len(engine.connections) == 1
    answers = await asyncio.gather(*(client.send(leg(engine.url)) for _ in range(150)))
    assert {type(a) for a in answers} == {PrefillAnswered}


@pytest.mark.asyncio
async def test_nobody_listens(client: PrefillClient) -> None:
    """Refused, at once."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/x"
        failed = await client.send(leg(url))
    assert isinstance(failed, PrefillFailed)
    assert failed.reason is Reason.PREFILL_REFUSED
    assert failed.seconds < 1


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("timeout_s", "reason"),
    [(5.0, Reason.PREFILL_UNREACHABLE), (0.3, Reason.PREFILL_TIMEOUT)],
    ids=["its own limit", "what is left of the whole"],
)
async def test_a_connection_that_nobody_accepts(
    client: PrefillClient, timeout_s: float, reason: Reason
) -> None:
    """Not refused: the backlog of an engine that lives may be full. Where less time is left than a
    connection may take, it is the request's limit that is over."""
    with socket.socket() as full, socket.socket() as first, socket.socket() as second:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for waiting in (first, second):
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        url = f"http://127.0.0.1:{full.getsockname()[1]}/x"
        failed = await client.send(leg(url, timeout_s=timeout_s))
    assert isinstance(failed, PrefillFailed)
    assert failed.reason is reason
    assert failed.seconds == pytest.approx(min(timeout_s, CONNECT_LIMIT_S), abs=0.25)


@pytest.mark.asyncio
async def test_no_route_is_refused_and_the_kernels_patience_is_not(
    client: PrefillClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first is known at once; the second is a connection that timed out."""
    failed = await client.send(leg("http://255.255.255.255:80/x"))
    assert isinstance(failed, PrefillFailed)
    assert failed.reason is Reason.PREFILL_REFUSED

    async def late(*_: object, **__: object) -> None:
        raise OSError(errno.ETIMEDOUT, "Connection timed out")

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", late)
    failed = await client.send(leg("http://127.0.0.1:1/x"))
    assert isinstance(failed, PrefillFailed)
    assert failed.reason is Reason.PREFILL_UNREACHABLE


@pytest.mark.asyncio
@pytest.mark.parametrize("url", ["http://name.invalid:1/x", "http://[::1%nowhere]:1/x", "nonsense"])
async def test_a_url_that_leads_nowhere_is_a_failure(client: PrefillClient, url: str) -> None:
    """Never an exception."""
    assert isinstance(await client.send(leg(url)), PrefillFailed)


@pytest.mark.asyncio
async def test_a_connection_that_ends_before_the_answer(
    client: PrefillClient, raw: Callable[[Handler], Awaitable[str]]
) -> None:
    """Reset, whether nothing came, half a head, or half a body."""
    for start in (
        b"",
        b"HTTP/1.1 200 OK\r\ncontent-",
        b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{",
        b"garbage\r\n\r\n",
    ):

        async def half(
            reader: asyncio.StreamReader, writer: asyncio.StreamWriter, start: bytes = start
        ) -> None:
            await read_request(reader)
            writer.write(start)
            writer.close()

        failed = await client.send(leg(await raw(half)))
        assert isinstance(failed, PrefillFailed), start
        assert failed.reason is Reason.PREFILL_RESET, start


class SlowToNotice(PrefillClient):
    """Its connections are handed over when the other end has closed them already."""

    async def _dial(self, url: HttpUrl, address: str) -> _Connection:
        connection = await super()._dial(url, address)
        await until(lambda: not connection.is_open)
        await asyncio.sleep(0)
        return connection


@pytest.mark.asyncio
async def test_a_connection_that_ends_before_the_request(
    raw: Callable[[Handler], Awaitable[str]],
) -> None:
    """Reset at once: nothing would ever come of what is written to it."""

    async def leaves(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    client = SlowToNotice(CONNECT_LIMIT_S)
    failed = await client.send(leg(await raw(leaves), timeout_s=3))
    assert isinstance(failed, PrefillFailed)
    assert failed.reason is Reason.PREFILL_RESET
    await client.close()


@pytest.mark.asyncio
async def test_the_limit_is_for_the_whole_answer(
    client: PrefillClient, raw: Callable[[Handler], Awaitable[str]]
) -> None:
    """A head that comes in time does not extend it; no time left is no request at all."""

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{")
        await reader.read()
        writer.close()

    url = await raw(slow)
    started = monotonic()
    failed = await client.send(leg(url, timeout_s=0.2))
    assert isinstance(failed, PrefillFailed)
    assert failed.reason is Reason.PREFILL_TIMEOUT
    assert 0.1 < monotonic() - started < 2
    for nothing in (0.0, -1.0):
        failed = await client.send(leg(url, timeout_s=nothing))
        assert isinstance(failed, PrefillFailed)
        assert failed.reason is Reason.PREFILL_TIMEOUT


@pytest.mark.asyncio
async def test_a_2xx_whose_body_is_late_is_let_go(
    client: PrefillClient, raw: Callable[[Handler], Awaitable[str]]
) -> None:
    """WRITE: the status is known, the body is None; an error's body is waited for."""

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{")
        await reader.read()
        writer.close()

    answered = await client.send(leg(await raw(slow), body_timeout_s=0.1))
    assert isinstance(answered, PrefillAnswered)
    assert (answered.status, answered.body) == (200, None)

    async def late_error(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 400 Bad\r\ncontent-length: 3\r\n\r\n")
        await asyncio.sleep(0.3)
        writer.write(b"why")
        writer.close()

    answered = await client.send(leg(await raw(late_error), body_timeout_s=0.1))
    assert isinstance(answered, PrefillAnswered)
    assert (answered.status, answered.body) == (400, b"why")


@pytest.mark.asyncio
async def test_cancelling_closes_the_connection(
    client: PrefillClient, raw: Callable[[Handler], Awaitable[str]]
) -> None:
    """For vLLM that is the abort."""
    asked, closed = asyncio.Event(), asyncio.Event()

    async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        asked.set()
        await reader.read()
        closed.set()
        writer.close()

    task = client.send(leg(await raw(never)))
    async with asyncio.timeout(5):
        await asked.wait()
        task.cancel()
        await closed.wait()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.asyncio
async def test_no_socket_here_is_not_the_instances_fault(
    client: PrefillClient, engine: Engine
) -> None:
    """Out of descriptors: OSError, not `prefill_refused`, for which the instance would be ejected;
    with descriptors again the next leg is answered."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as probe:
        lowest_free = probe.fileno()
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
    try:
        with pytest.raises(OSError, match="Too many open files") as caught:
            await client.send(leg(engine.url))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert caught.value.errno == errno.EMFILE
    assert isinstance(await client.send(leg(engine.url)), PrefillAnswered)
