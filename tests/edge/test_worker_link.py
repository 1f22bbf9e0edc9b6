"""The link between control and workers, over a real socket: it comes back and keeps what it can."""

import asyncio
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import pytest
from polling import until

from sidecar.edge import worker_link
from sidecar.edge.worker_link import LinkClient, LinkServer
from sidecar.errors import StartError
from sidecar.exchange.reasons import Reason
from sidecar.exchange.records import Batch, FromWorker, Hello, Placed, Record, Refused, encode
from sidecar.routing.view import View


@pytest.fixture
def path() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    yield folder / "link.sock"
    shutil.rmtree(folder)


def record(exchange: str) -> Record:
    return Refused(
        exchange=exchange, api="other", model="", is_streaming=False, reason=Reason.DRAINING
    )


def placed(exchange: str) -> Placed:
    return Placed(
        exchange=exchange,
        worker=0,
        api="completions",
        model="m",
        is_streaming=False,
        mode=None,
        prefill=None,
        decode=None,
    )


class Control:
    """A control process's end that remembers."""

    def __init__(self) -> None:
        self.messages: list[tuple[int, FromWorker]] = []
        self.lost: list[int] = []
        self.fails = False
        self.failures = 0
        self.server = LinkServer(on_message=self._take, on_lost=self.lost.append)

    def _take(self, worker: int, message: FromWorker) -> None:
        if self.fails:
            self.failures += 1
            raise RuntimeError("a bug in what takes the messages")
        self.messages.append((worker, message))

    @property
    def hellos(self) -> list[Hello]:
        return [m for _, m in self.messages if isinstance(m, Hello)]

    @property
    def batches(self) -> list[Batch]:
        return [m for _, m in self.messages if isinstance(m, Batch)]

    @property
    def exchanges(self) -> list[str]:
        return [r.exchange for batch in self.batches for r in batch.records]


class Worker:
    """A worker's end that remembers."""

    def __init__(self, path: Path, index: int = 0) -> None:
        self.views: list[View] = []
        self.open: tuple[Placed, ...] = ()
        self.unlocked = 0
        self.client = LinkClient(
            path,
            on_view=self._view,
            hello=lambda: Hello(worker=index, pid=1, open=self.open),
            unlocked_picks=lambda: self.unlocked,
        )
        self.task = asyncio.create_task(self.client.run())

    def _view(self, view: View) -> None:
        if view.number < 0:
            raise RuntimeError("a bug in what takes the views")
        self.views.append(view)

    async def close(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@pytest.mark.asyncio
async def test_views_go_one_way_and_records_the_other(path: Path) -> None:
    """A view published before the worker came reaches it too; records come in order, in batches."""
    control = Control()
    await control.server.listen(path)
    control.server.publish(View(number=1))
    worker = Worker(path, index=3)
    await until(lambda: worker.views)
    control.server.publish(View(number=2))
    for i in range(100):
        worker.client.note(record(str(i)))
    worker.unlocked = 5
    await until(lambda: len(control.exchanges) == 100)
    assert control.exchanges == [str(i) for i in range(100)]
    assert {w for w, _ in control.messages} == {3}
    assert sum(batch.unlocked_picks for batch in control.batches) == 5
    await until(lambda: [v.number for v in worker.views] == [1, 2])
    assert control.server.workers == 1
    await worker.close()
    await until(lambda: control.lost == [3])
    assert control.server.workers == 0
    await control.server.close()


@pytest.mark.asyncio
async def test_records_wait_while_control_is_away(path: Path) -> None:
    """A worker keeps its last view, tells a new control what is open, and then what happened."""
    first = Control()
    await first.server.listen(path)
    first.server.publish(View(number=7))
    worker = Worker(path)
    await until(lambda: worker.views)
    await first.server.close()
    worker.open = (placed("open"),)
    worker.client.note(record("while away"))
    second = Control()
    await second.server.listen(path)
    await until(lambda: second.exchanges)
    assert [hello.open for hello in second.hellos] == [(placed("open"),)]
    assert isinstance(second.messages[0][1], Hello), "first who it is, then what happened"
    assert second.exchanges == ["while away"]
    assert [v.number for v in worker.views] == [7]
    await worker.close()
    await second.server.close()


@pytest.mark.asyncio
async def test_the_queue_is_bounded_and_the_loss_is_told(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest go first; control hears how many."""
    monkeypatch.setattr(worker_link, "QUEUE_MAX", 10)
    worker = Worker(path)
    for i in range(25):
        worker.client.note(record(str(i)))
    control = Control()
    await control.server.listen(path)
    await until(lambda: control.batches)
    assert control.exchanges == [str(i) for i in range(15, 25)]
    assert [batch.dropped for batch in control.batches] == [15]
    await worker.close()
    await control.server.close()


GARBAGE = [
    b"\x00\x00\x00\x03abc",
    b"\xff\xff\xff\xff",
    b"\x00\x00\x00\x00",
    b"\x00",
    b"GET / HTTP/1.1\r\n\r\n",
    (lambda frame: len(frame).to_bytes(4, "big") + frame)(encode(Batch(records=()))),
]


@pytest.mark.asyncio
@pytest.mark.parametrize("garbage", GARBAGE, ids=repr)
async def test_garbage_ends_its_own_link_only(path: Path, garbage: bytes) -> None:
    """Whoever sends it is hung up on; the worker beside it notices nothing."""
    control = Control()
    await control.server.listen(path)
    control.server.publish(View(number=1))
    worker = Worker(path)
    await until(lambda: worker.views)
    reader, writer = await asyncio.open_unix_connection(str(path))
    writer.write(garbage)
    writer.write_eof()
    async with asyncio.timeout(5):
        assert await reader.read() == b""
    writer.close()
    worker.client.note(record("after"))
    await until(lambda: control.exchanges == ["after"])
    assert control.lost == []
    await worker.close()
    await control.server.close()


@pytest.mark.asyncio
async def test_a_fault_in_control_does_not_cost_the_link(path: Path) -> None:
    """One message that cannot be taken is logged, the next ones are taken."""
    control = Control()
    await control.server.listen(path)
    worker = Worker(path)
    await until(lambda: control.hellos)
    control.fails = True
    worker.client.note(record("lost"))
    await until(lambda: control.failures)
    control.fails = False
    worker.client.note(record("taken"))
    await until(lambda: "taken" in control.exchanges)
    assert len(control.hellos) == 1
    await worker.close()
    await control.server.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("frame", [b"\xc1", encode(View(number=-1))])
async def test_a_view_that_cannot_be_taken_is_asked_for_again(path: Path, frame: bytes) -> None:
    """A worker whose link died for good would place on an old view for ever."""
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        bad = frame if connections < 3 else encode(View(number=9))
        writer.write(len(bad).to_bytes(4, "big") + bad)
        await reader.read()
        writer.close()

    server = await asyncio.start_unix_server(serve, path=str(path))
    worker = Worker(path)
    await until(lambda: worker.views)
    assert worker.views == [View(number=9)]
    assert connections == 3
    await worker.close()
    server.close()


@pytest.mark.asyncio
async def test_a_control_that_hangs_up_at_once_is_not_stormed(path: Path) -> None:
    """The pause grows as if nobody listened."""
    connections = 0

    async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        writer.close()

    server = await asyncio.start_unix_server(serve, path=str(path))
    worker = Worker(path)
    started = monotonic()
    await until(lambda: connections >= 4)
    assert monotonic() - started > 0.05 + 0.1 + 0.2 - 0.01
    await worker.close()
    server.close()


@pytest.mark.asyncio
async def test_a_worker_that_comes_twice_is_told_lost_once(path: Path) -> None:
    """Its successor may come before the end of its old link was seen: what the old one held must
    not be held for ever."""
    control = Control()
    await control.server.listen(path)
    first, second = Worker(path), None
    await until(lambda: len(control.hellos) == 1)
    second = Worker(path)
    await until(lambda: len(control.hellos) == 2)
    assert control.lost == [0]
    await first.close()
    assert control.server.workers == 1
    await second.close()
    await until(lambda: control.server.workers == 0)
    await control.server.close()


@pytest.mark.asyncio
async def test_a_socket_that_cannot_be_had_is_one_clear_fault(tmp_path: Path) -> None:
    """The run directory was removed, or is somebody else's."""
    with pytest.raises(StartError, match=r"cannot listen on .*/gone/link\.sock: No such file"):
        await Control().server.listen(tmp_path / "gone" / "link.sock")
