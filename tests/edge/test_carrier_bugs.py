"""A bug in one call's handler, over either carrier: it ends that call, and no other."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest
import pytest_asyncio
from polling import until

from sidecar.app.ext_proc_server import METHOD, SERVICE, carrier
from sidecar.wire.calls import Call, Carrier


class Buggy:
    """`calls.Handler`. It fails at a message, or at the end."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.closed = 0

    def on_message(self, message: bytes) -> None:
        if message == b"bug":
            raise RuntimeError("a bug")
        self.call.send(message)
        if message == b"end":
            self.call.end()

    def on_closed(self) -> None:
        self.closed += 1
        raise RuntimeError("a bug at the end")


class Served:
    def __init__(self, kind: str) -> None:
        self.calls: list[Buggy] = []
        self.carrier: Carrier = carrier(kind, self._accept)
        self.channel: grpc.aio.Channel

    def _accept(self, call: Call) -> Buggy:
        self.calls.append(Buggy(call))
        return self.calls[-1]

    async def begun(self) -> grpc.aio.StreamStreamCall:
        """A call whose handler has answered once."""
        call = self.channel.stream_stream(f"/{SERVICE}/{METHOD}")()
        await call.write(b"x")
        assert await call.read() == b"x"
        return call


@pytest_asyncio.fixture(params=["http2", "grpcio"])
async def served(request: pytest.FixtureRequest) -> AsyncIterator[Served]:
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    made = Served(request.param)
    await made.carrier.listen(folder / "w0.sock")
    async with grpc.aio.insecure_channel(f"unix:{folder / 'w0.sock'}") as channel:
        made.channel = channel
        yield made
    await made.carrier.close(0)
    shutil.rmtree(folder)


async def is_served(call: grpc.aio.StreamStreamCall) -> bool:
    await call.write(b"end")
    code = asyncio.wait_for(call.code(), 5)
    return await call.read() == b"end" and await code is grpc.StatusCode.OK


@pytest.mark.asyncio
async def test_a_bug_at_a_message(served: Served) -> None:
    """The client gets an error at once; the handler hears that it is over, once."""
    other, broken = await served.begun(), await served.begun()
    await broken.write(b"bug")
    assert await asyncio.wait_for(broken.code(), 5) is not grpc.StatusCode.OK
    await until(lambda: [call.closed for call in served.calls] == [0, 1])
    assert await is_served(other)
    assert served.calls[0].closed == 0


@pytest.mark.asyncio
@pytest.mark.parametrize("way", ["half", "reset"])
async def test_a_bug_at_the_end(served: Served, way: str) -> None:
    """It is asked no second time, and the call is over."""
    other, broken = await served.begun(), await served.begun()
    if way == "half":
        await broken.done_writing()
        await asyncio.wait_for(broken.code(), 5)
    else:
        broken.cancel()
    await until(lambda: sum(call.closed for call in served.calls))
    assert await is_served(other)
    assert [call.closed for call in served.calls] == [0, 1]
