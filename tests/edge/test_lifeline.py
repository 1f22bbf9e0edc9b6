"""A child's end of the lifeline: it beats, and the end of file ends the child."""

import asyncio
import os
import socket
from collections.abc import Iterator

import pytest

from sidecar.edge.lifeline import Lifeline


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    yield ours, theirs
    ours.close()
    theirs.close()


@pytest.mark.asyncio
async def test_it_beats_at_once(ends: tuple[socket.socket, socket.socket]) -> None:
    """The supervisor's patience with a start ends with the first byte."""
    ours, theirs = ends
    lifeline = Lifeline(theirs.fileno(), lambda: None)
    lifeline.start()
    async with asyncio.timeout(5):
        assert await asyncio.get_running_loop().sock_recv(ours, 10) == b"."
    lifeline.close()
    lifeline.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("how", ["shutdown", "close"])
async def test_end_of_file_is_told_once(
    ends: tuple[socket.socket, socket.socket], how: str
) -> None:
    """However the supervisor went, also with beats that nobody read."""
    ours, theirs = ends
    told = asyncio.Event()
    calls: list[int] = []

    def on_end() -> None:
        calls.append(1)
        told.set()

    lifeline = Lifeline(theirs.fileno(), on_end)
    lifeline.start()
    await asyncio.sleep(0)
    if how == "shutdown":
        ours.shutdown(socket.SHUT_WR)
    else:
        ours.close()
    async with asyncio.timeout(5):
        await told.wait()
    await asyncio.sleep(0)
    assert calls == [1]


@pytest.mark.asyncio
async def test_what_the_supervisor_writes_means_nothing(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    """Only the end of file does."""
    ours, theirs = ends
    lifeline = Lifeline(theirs.fileno(), lambda: pytest.fail("ended by a byte"))
    lifeline.start()
    ours.send(b"hello")
    async with asyncio.timeout(5):
        while True:  # until it was read
            try:
                theirs.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            await asyncio.sleep(0.01)
    lifeline.close()


@pytest.mark.asyncio
async def test_a_supervisor_that_does_not_read_is_no_reason_to_end(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    """It may be stopped for a while: a full pipe is left alone."""
    _, theirs = ends
    os.set_blocking(theirs.fileno(), False)
    try:
        while True:
            theirs.send(b"." * 65536)
    except BlockingIOError:
        pass
    lifeline = Lifeline(theirs.fileno(), lambda: pytest.fail("ended by a full pipe"))
    lifeline.start()
    await asyncio.sleep(0.05)
    assert lifeline._task is not None
    assert not lifeline._task.done()
    lifeline.close()
