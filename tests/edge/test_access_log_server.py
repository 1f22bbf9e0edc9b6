"""The access log server: entries in order, and nothing that one of them does ends a stream."""

import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio
import pytest
import pytest_asyncio
from envoy.service.accesslog.v3 import als_pb2
from polling import until

from sidecar.edge.access_log_server import SERVICE, AccessLogServer
from sidecar.wire.access_log import Attempt, Entry

METHOD = f"/{SERVICE}/StreamAccessLogs"


class Log:
    def __init__(self) -> None:
        self.exchanges: list[str] = []
        self.channel: grpc.aio.Channel

    def take(self, entry: Entry | Attempt) -> None:
        assert isinstance(entry, Entry)
        if entry.exchange == "bug":
            raise RuntimeError("a bug in what takes the entries")
        self.exchanges.append(entry.exchange)

    async def until(self, count: int) -> None:
        await until(lambda: len(self.exchanges) >= count, f"{count} entries")


@pytest_asyncio.fixture
async def log() -> AsyncIterator[Log]:
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    made = Log()
    server = grpc.aio.server()
    AccessLogServer(made.take).register(server)
    server.add_insecure_port(f"unix:{folder / 's'}")
    await server.start()
    async with grpc.aio.insecure_channel(f"unix:{folder / 's'}") as channel:
        made.channel = channel
        yield made
    await server.stop(0)
    shutil.rmtree(folder)


def message(*exchanges: str) -> bytes:
    one = als_pb2.StreamAccessLogsMessage()
    for exchange in exchanges:
        one.http_logs.log_entry.add().common_properties.custom_tags["ex"] = exchange
    data: bytes = one.SerializeToString()
    return data


@pytest.mark.asyncio
async def test_entries_arrive_while_the_stream_is_open_and_in_order(log: Log) -> None:
    """Envoy keeps it open for ever; its end is answered."""
    call = log.channel.stream_unary(METHOD)()
    await call.write(message("a", "b"))
    await call.write(message("c"))
    await log.until(3)
    assert log.exchanges == ["a", "b", "c"]
    await call.done_writing()
    assert await call == b""


@pytest.mark.asyncio
async def test_garbage_and_faults_cost_one_entry_each(log: Log) -> None:
    """The rest of the message and of the stream is taken."""
    call = log.channel.stream_unary(METHOD)()
    await call.write(message("a", "bug", "b"))
    await call.write(b"\xff\xff")
    await call.write(message("c"))
    await log.until(3)
    assert log.exchanges == ["a", "b", "c"]
    call.cancel()


@pytest.mark.asyncio
async def test_several_streams_at_once(log: Log) -> None:
    """One for each Envoy worker; the end of one means nothing for another."""
    first, second = log.channel.stream_unary(METHOD)(), log.channel.stream_unary(METHOD)()
    await first.write(message("a"))
    await log.until(1)
    first.cancel()
    await second.write(message("b"))
    await log.until(2)
    second.cancel()
