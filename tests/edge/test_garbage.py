"""What a request makes is gone with its last reference: bodies do not wait for the collector."""

import asyncio
import gc
from collections.abc import Iterator

import pytest
from polling import until
from test_ext_proc_server import GOOD, Here, here, reading, writing  # noqa: F401  the fixture

from sidecar.edge.prefill_client import PrefillClient
from sidecar.exchange.effects import StartPrefill
from sidecar.exchange.events import PrefillAnswered


@pytest.fixture
def collector() -> Iterator[None]:
    """Collects only when it is told to, and keeps what it finds in `gc.garbage`."""
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    yield
    gc.set_debug(0)
    gc.garbage.clear()
    gc.enable()


def ours() -> list[str]:
    """The types of this project in the garbage; gRPC's client makes some of its own."""
    gc.collect()
    return sorted(
        {type(o).__name__ for o in gc.garbage if type(o).__module__.startswith("sidecar")}
    )


@pytest.mark.asyncio
@pytest.mark.usefixtures("collector")
@pytest.mark.parametrize("way", ["served", "left", "prefill alone"])
async def test_an_exchange_leaves_no_circle(here: Here, way: str) -> None:  # noqa: F811
    """Whichever way it ends."""
    stream = await (writing(here) if way == "prefill alone" else reading(here))
    if way == "served":
        here.answers.put_nowait(GOOD)
        await stream.read()
        assert await stream.is_over()
    else:
        stream.call.cancel()
        await until(lambda: not here.server.open_records())
        here.answers.put_nowait(GOOD)
    await until(lambda: not here.server._running and not here.server._running_on)
    del stream
    assert ours() == []


@pytest.mark.asyncio
@pytest.mark.usefixtures("collector")
@pytest.mark.parametrize("is_kept", [True, False])
async def test_a_leg_leaves_no_circle(is_kept: bool) -> None:
    """On a connection that is used again, or not."""
    closed = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"{}")
        how = b"" if is_kept else b"connection: close\r\n"
        writer.write(b"HTTP/1.1 200 OK\r\n" + how + b"content-length: 2\r\n\r\n{}")
        await reader.read()
        writer.close()
        await writer.wait_closed()
        closed.set()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/completions"
    client = PrefillClient(1.0)
    leg = StartPrefill(url=url, headers={}, body=b"{}", timeout_s=5, body_timeout_s=None)
    assert isinstance(await client.send(leg), PrefillAnswered)
    await client.close()
    async with asyncio.timeout(5):
        await closed.wait()
    server.close()
    del leg
    assert ours() == []
