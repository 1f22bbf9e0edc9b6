"""One request to every instance, over HTTP."""

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from aiohttp import web

from sidecar.edge.fan_out import MAX_ANSWER_BYTES, FanOut
from sidecar.routing.instance import Instance, Role, TransferMode
from tests.ports import free_port


def instance(address: str, role: Role) -> Instance:
    return Instance(
        address=address,
        role=role,
        transfer_mode=TransferMode.READ,
        dp_size=1,
        tp_size=1,
        kv_host="127.0.0.1",
        handshake_port=1,
        notify_port=2,
    )


class Engine:
    """Answers what it is told to, and keeps what it was asked."""

    def __init__(self) -> None:
        self.status, self.body, self.address = 200, "", ""
        self.asked: list[tuple[str, str, bytes, dict[str, str]]] = []

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.read()
        self.asked.append((request.method, request.path, body, dict(request.headers)))
        return web.Response(status=self.status, text=self.body)


@pytest_asyncio.fixture
async def engine() -> AsyncIterator[Engine]:
    engine = Engine()
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", engine.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    engine.address = f"127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield engine
    finally:
        await runner.cleanup()


async def ask(
    *addresses: str, key: str | None = None, timeout_s: float = 5.0
) -> list[tuple[str, str, int | None, str]]:
    roles = (Role.PREFILL, Role.DECODE)
    fan_out = FanOut(key, 5.0, timeout_s)
    try:
        said = await fan_out.post(
            "/start_profile",
            [(f"x{i}", instance(a, roles[i % 2])) for i, a in enumerate(addresses)],
            b"{}",
            {"Authorization": "Bearer client", "Content-Type": "application/json", "Cookie": "c"},
        )
    finally:
        await fan_out.close()
    return [(one.instance, one.role, one.status, one.body) for one in said]


@pytest.mark.asyncio
async def test_every_instance_is_asked_and_each_answer_told(engine: Engine) -> None:
    """Also of one that does not listen: it hides no other's answer."""
    engine.body = "started"
    refusing = f"127.0.0.1:{free_port()}"
    first, second = await ask(engine.address, refusing)
    assert first == ("x0", "prefill", 200, "started")
    assert second[:3] == ("x1", "decode", None)
    assert "refused" in second[3] or "connect" in second[3].lower()
    ((method, path, body, headers),) = engine.asked
    assert (method, path, body) == ("POST", "/start_profile", b"{}")
    assert headers["Authorization"] == "Bearer client"
    assert "Cookie" not in headers


@pytest.mark.asyncio
async def test_the_engines_key_takes_the_clients_place(engine: Engine) -> None:
    """As on every other way to an engine."""
    await ask(engine.address, key="k")
    assert engine.asked[0][3]["Authorization"] == "Bearer k"


@pytest.mark.asyncio
async def test_a_long_answer_is_cut_and_a_bad_one_told(engine: Engine) -> None:
    """It is shown to a person, and 404 is what an engine without a profiler says."""
    engine.status, engine.body = 404, "x" * (2 * MAX_ANSWER_BYTES)
    ((_, _, status, body),) = await ask(engine.address)
    assert (status, body) == (404, "x" * MAX_ANSWER_BYTES)


@pytest.mark.asyncio
async def test_an_answer_in_pieces_is_shown_whole() -> None:
    """Each of them comes only when the one before has been read."""
    pieces = [b"first ", b"second ", b"third"]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.02)  # its pace
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    ((_, _, status, body),) = await ask(address)
    assert (status, body) == (200, "first second third")
    server.close()
    await server.wait_closed()


@pytest.mark.asyncio
async def test_all_are_asked_at_once_however_many() -> None:
    """Each answers only when every other has been asked."""
    count, here, all_here = 150, 0, asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal here
        await reader.readuntil(b"\r\n\r\n")
        here += 1
        if here == count:
            all_here.set()
        await all_here.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=count)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    said = await ask(*[address] * count, timeout_s=20.0)
    assert [status for _, _, status, _ in said] == [200] * count
    server.close()
    await server.wait_closed()


@pytest.mark.asyncio
async def test_one_that_never_answers_is_given_up(engine: Engine) -> None:
    """Within the limit, and the others are told."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        first, second = await ask(address, engine.address, timeout_s=0.3)
    assert first == ("x0", "prefill", None, "no answer in time")
    assert second[2] == 200
