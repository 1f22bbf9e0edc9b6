"""Notices on real sockets: one frame to each rank, and never to an engine that comes later."""

import asyncio
from collections.abc import Callable, Iterator

import pytest
import zmq
import zmq.asyncio

from sidecar.edge.kv_notifier import KvNotifier
from tests.ports import free_port

Rank = Callable[[int], zmq.asyncio.Socket]


@pytest.fixture
def rank() -> Iterator[Rank]:
    """Makes an engine's notify port: a ROUTER (protocol e)."""
    context = zmq.asyncio.Context()
    routers = []

    def make(port: int) -> zmq.asyncio.Socket:
        routers.append(context.socket(zmq.ROUTER))
        routers[-1].bind(f"tcp://127.0.0.1:{port}")
        return routers[-1]

    yield make
    for router in routers:
        router.close(linger=0)
    context.term()


async def heard(router: zmq.asyncio.Socket) -> list[bytes]:
    async with asyncio.timeout(5):
        return (await router.recv_multipart())[1:]


@pytest.mark.asyncio
async def test_each_rank_gets_one_frame(rank: Rank) -> None:
    """The payload as it is; true says that all took it."""
    ports = [free_port(), free_port()]
    routers = [rank(port) for port in ports]
    notifier = KvNotifier()
    assert await notifier.send([f"tcp://127.0.0.1:{port}" for port in ports], b"notice")
    assert [await heard(router) for router in routers] == [[b"notice"], [b"notice"]]
    assert "0 peers" in repr(notifier)
    notifier.close()


@pytest.mark.asyncio
async def test_many_at_once_to_one_rank_all_arrive(rank: Rank) -> None:
    """Over one connection."""
    port = free_port()
    router = rank(port)
    notifier = KvNotifier()
    sends = [notifier.send([f"tcp://127.0.0.1:{port}"], b"%d" % i) for i in range(500)]
    assert all(await asyncio.gather(*sends))
    assert {(await heard(router))[0] for _ in range(500)} == {b"%d" % i for i in range(500)}
    notifier.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("address", ["tcp://127.0.0.1:{}", "tcp://nowhere.invalid:1", "nonsense"])
async def test_nobody_there_is_said_and_nothing_is_queued(rank: Rank, address: str) -> None:
    """False when the time is over; an engine that comes later hears nothing of it."""
    port = free_port()
    notifier = KvNotifier(connect_s=0.3)
    assert not await notifier.send([address.format(port)], b"old")
    router = rank(port)
    assert await notifier.send([f"tcp://127.0.0.1:{port}"], b"new")
    assert await heard(router) == [b"new"]
    notifier.close()


@pytest.mark.asyncio
async def test_an_engine_that_is_slow_to_listen_is_waited_for(rank: Rank) -> None:
    """Within the limit, which is short: who it is must be looked up anew before it is long."""
    port = free_port()
    notifier = KvNotifier(connect_s=10)
    send = asyncio.create_task(notifier.send([f"tcp://127.0.0.1:{port}"], b"notice"))
    await asyncio.sleep(0.3)
    assert not send.done()
    router = rank(port)
    assert await heard(router) == [b"notice"]
    assert await send
    notifier.close()
