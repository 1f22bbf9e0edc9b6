"""What decode waits for: ended, told, or counted; never forgotten when a worker dies, and nothing
said to an engine that it is not meant for."""

import asyncio
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest

from sidecar.app import transfer_keeper
from sidecar.app.transfer_keeper import TransferKeeper
from sidecar.edge.transfer_journal import CELLS, TransferJournal
from sidecar.exchange.records import Record, TransferFailed
from sidecar.exchange.transfer import Transfer
from sidecar.routing.instance import Instance, Role, State, TransferMode, Version
from sidecar.routing.slots import Slot
from sidecar.routing.view import Member, View
from tests.edge.polling import until

P, D = "10.0.0.1:8000", Slot("10.0.1.1:8000", 2)
V33 = Version(0, 33)
NOW = 1000.0
FREED, LEFT = TransferFailed(decode=D, is_freed=True), TransferFailed(decode=D, is_freed=False)


def transfer(name: str = "tx-1") -> Transfer:
    return Transfer(transfer_id=name, prefill=P, decode=D, since=100.0)


def member(role: Role, address: str, alive_since: float, version: Version | None = V33) -> Member:
    return Member(
        instance=Instance(
            address=address,
            role=role,
            transfer_mode=TransferMode.WRITE,
            dp_size=4,
            kv_host=address.partition(":")[0],
            handshake_port=6301,
            notify_port=61005,
        ),
        ordinal=0,
        endpoint=address,
        state=State.READY,
        is_placeable=True,
        version=version,
        alive_since=alive_since,
    )


def view(prefill: float = 50.0, decode: float = 50.0, version: Version | None = V33) -> View:
    """A pool whose engines are known to have been alive since then."""
    p, d = member(Role.PREFILL, P, prefill), member(Role.DECODE, D.address, decode, version)
    return View(number=1, members=(p, d))


class Engines:
    """Takes notices, as a KvNotifier would deliver them."""

    def __init__(self, *, is_there: bool = True) -> None:
        self.is_there = is_there
        self.tries = 0
        self.told: list[tuple[tuple[str, ...], object]] = []

    async def send(self, addresses: Iterable[str], payload: bytes) -> bool:
        self.tries += 1
        if self.is_there:
            self.told.append((tuple(addresses), msgspec.msgpack.decode(payload)))
        return self.is_there


class Desk:
    """A keeper with its journal in a file, as one worker after another has it."""

    def __init__(
        self,
        path: Path,
        engines: Engines | None,
        push_limit_s: float = 0.05,
        shown: View | None = None,
        cells: int = CELLS,
    ) -> None:
        self.notes: list[Record] = []
        self.journal = TransferJournal(path, cells)
        self.keeper = TransferKeeper(
            self.journal, engines, self.notes.append, push_limit_s, defer_s=60.0
        )
        self.keeper.see(shown or view())


def left_in(path: Path) -> int:
    return len(TransferJournal(path).leftovers)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "transfers.w0"


@pytest.fixture(autouse=True)
def _is_impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer_keeper, "PATIENCE_S", 0.2)
    monkeypatch.setattr(transfer_keeper, "RETRY_S", 0.01)


@pytest.mark.asyncio
async def test_a_transfer_that_nobody_waits_for_leaves_nothing(path: Path) -> None:
    """No notice, no record, no journal entry."""
    engines = Engines()
    desk = Desk(path, engines)
    desk.keeper.open(transfer())
    assert left_in(path) == 1
    desk.keeper.end("tx-1", is_answered=False)
    assert (engines.told, desk.notes) == ([], [])
    assert left_in(path) == 0
    assert "open=0 answered=0" in repr(desk.keeper)


@pytest.mark.asyncio
async def test_a_failed_transfer_is_told_to_the_rank_that_waits(path: Path) -> None:
    """Its port, its id; and noted as freed."""
    engines = Engines()
    desk = Desk(path, engines)
    desk.keeper.open(transfer())
    desk.keeper.fail("tx-1", is_certain=True)
    await until(lambda: desk.notes == [FREED])
    assert engines.told == [
        (("tcp://10.0.1.1:61007",), {"type": "write_failed", "transfer_id": "tx-1"})
    ]
    assert left_in(path) == 0


@pytest.mark.asyncio
async def test_an_engine_that_is_stopped_is_tried_again_for_a_while(path: Path) -> None:
    """It takes the notice when it runs again; if it does not in time, its blocks count as left."""
    engines = Engines(is_there=False)
    desk = Desk(path, engines)
    desk.keeper.open(transfer("tx-1"))
    desk.keeper.fail("tx-1", is_certain=True)
    await until(lambda: engines.tries > 2)
    engines.is_there = True
    await until(lambda: desk.notes == [FREED])
    engines.is_there = False
    desk.keeper.open(transfer("tx-2"))
    desk.keeper.fail("tx-2", is_certain=True)
    await until(lambda: desk.notes == [FREED, LEFT])
    assert left_in(path) == 0


@pytest.mark.asyncio
async def test_an_uncertain_failure_waits_until_no_push_can_come(path: Path) -> None:
    """Blocks that are freed earlier could be written by a prefill engine that is still at it."""
    engines = Engines()
    desk = Desk(path, engines, push_limit_s=3600)
    desk.keeper.open(transfer())
    desk.keeper.fail("tx-1", is_certain=False)
    await asyncio.sleep(0.1)
    assert engines.told == []
    assert left_in(path) == 1
    await desk.keeper.close()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("engines", "shown"),
    [
        (None, view()),
        (Engines(), view(version=Version(0, 32))),
        (Engines(), view(version=None)),
        (Engines(), View(number=1)),
    ],
    ids=["not allowed", "too old", "of unknown version", "gone from the pool"],
)
async def test_what_cannot_be_told_is_counted(
    path: Path, engines: Engines | None, shown: View
) -> None:
    """Nothing is sent."""
    desk = Desk(path, engines, shown=shown)
    desk.keeper.open(transfer())
    desk.keeper.fail("tx-1", is_certain=True)
    await until(lambda: desk.notes == [LEFT])
    assert engines is None or engines.told == []
    assert left_in(path) == 0


@pytest.mark.asyncio
async def test_an_engine_of_another_life_is_told_nothing(path: Path) -> None:
    """Its blocks went with the old one: also where it died while the notice waited."""
    engines = Engines()
    desk = Desk(path, engines, push_limit_s=0.1)
    desk.keeper.open(transfer())
    desk.keeper.fail("tx-1", is_certain=False)
    desk.keeper.see(view(decode=100.5))
    await until(lambda: left_in(path) == 0)
    assert (engines.told, desk.notes) == ([], [])


@pytest.mark.asyncio
async def test_an_engine_that_changed_its_role_is_told_nothing(path: Path) -> None:
    """A prefill engine would lose its notify thread by it."""
    engines = Engines()
    shown = View(number=1, members=(member(Role.PREFILL, D.address, 50.0),))
    desk = Desk(path, engines, shown=shown)
    desk.keeper.open(transfer())
    desk.keeper.fail("tx-1", is_certain=True)
    await until(lambda: desk.notes == [LEFT])
    assert engines.told == []


@pytest.mark.asyncio
async def test_the_next_worker_tells_what_the_last_one_left(path: Path) -> None:
    """Open ones, and those whose notice was still waiting; not before it knows the pool, nor while
    a push can come."""
    first = Desk(path, Engines(), push_limit_s=3600)
    first.keeper.open(transfer("tx-open"))
    first.keeper.open(transfer("tx-failing"))
    first.keeper.fail("tx-failing", is_certain=False)
    await first.keeper.close()  # the tasks alone end: a killed process closes no more than that
    engines = Engines()
    second = Desk(path, engines, push_limit_s=3600)
    second.keeper.recover(NOW)
    await asyncio.sleep(0.1)
    assert engines.told == []
    await second.keeper.close()
    third = Desk(path, engines)
    third.keeper.recover(NOW)
    await until(lambda: third.notes == [FREED, FREED])
    assert left_in(path) == 0


@pytest.mark.asyncio
async def test_the_pool_must_be_known_before_anything_is_said(path: Path) -> None:
    """A worker that has just started has no view yet."""
    Desk(path, Engines()).keeper.open(transfer())
    engines, notes = Engines(), []
    keeper = TransferKeeper(TransferJournal(path), engines, notes.append, 0.0, 60.0)
    keeper.recover(NOW)
    await asyncio.sleep(0.1)
    assert (engines.told, notes) == ([], [])
    keeper.see(view())
    await until(lambda: notes == [FREED])


@pytest.mark.asyncio
async def test_entries_of_another_version_are_dropped(path: Path) -> None:
    """They cannot be read, so nobody can be told."""
    TransferJournal(path).put(b"\xc1 not a transfer")
    desk = Desk(path, Engines())
    desk.keeper.recover(NOW)
    assert left_in(path) == 0
    assert desk.notes == []


@pytest.mark.asyncio
async def test_an_unknown_transfer_is_no_fault(path: Path) -> None:
    """Its leg broke before it began."""
    desk = Desk(path, Engines())
    desk.keeper.end("tx-9", is_answered=True)
    desk.keeper.fail("tx-9", is_certain=True)
    assert desk.notes == []


@pytest.mark.asyncio
async def test_an_answered_transfer_is_told_only_if_prefill_has_died_since(path: Path) -> None:
    """While its engine lives it pushes, or tells decode itself; counted it is not, for most of what
    a dead engine had answered had been pushed."""
    engines = Engines()
    desk = Desk(path, engines)
    desk.keeper.open(transfer())
    desk.keeper.end("tx-1", is_answered=True)
    desk.keeper.see(view(prefill=99.0))
    assert "answered=1" in repr(desk.keeper)
    desk.keeper.see(view(prefill=100.5))
    await until(lambda: len(engines.told) == 1)
    await until(lambda: left_in(path) == 0)
    assert desk.notes == []


@pytest.mark.asyncio
async def test_what_was_answered_long_ago_is_forgotten(path: Path) -> None:
    """Oldest first, and no younger one."""
    desk = Desk(path, Engines())
    for name in ("tx-1", "tx-2"):
        desk.keeper.open(transfer(name))
        desk.keeper.end(name, is_answered=True)
    second = desk.keeper._answered["tx-2"].answered_at
    desk.keeper.forget_before(second - 1e-9)
    assert list(desk.keeper._answered) == ["tx-2"]
    assert left_in(path) == 1
    desk.keeper.forget_before(second)
    assert left_in(path) == 0


@pytest.mark.asyncio
async def test_the_next_worker_watches_what_was_answered(path: Path) -> None:
    """It is told when prefill turns out to have died, and is not taken for one that failed."""
    first = Desk(path, Engines())
    first.keeper.open(transfer())
    first.keeper.end("tx-1", is_answered=True)
    engines = Engines()
    second = Desk(path, engines)
    second.keeper.recover(NOW)
    assert "answered=1 failing=0" in repr(second.keeper)
    second.keeper.see(view(prefill=100.5))
    await until(lambda: len(engines.told) == 1)


@pytest.mark.asyncio
async def test_what_is_from_before_a_reboot_is_dropped(path: Path) -> None:
    """Its times are of another clock."""
    Desk(path, Engines()).keeper.open(transfer())
    second = Desk(path, Engines())
    second.keeper.recover(now=99.0)
    assert "open=0 answered=0 failing=0" in repr(second.keeper)
    assert left_in(path) == 0


@pytest.mark.asyncio
async def test_where_there_is_no_room_the_oldest_answer_makes_some(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is the likeliest to be over; without one it is said, and the transfer is still told."""
    engines = Engines()
    desk = Desk(path, engines, cells=2)
    for name in ("tx-1", "tx-2"):
        desk.keeper.open(transfer(name))
    desk.keeper.end("tx-1", is_answered=True)
    desk.keeper.open(transfer("tx-3"))
    assert "open=2 answered=0" in repr(desk.keeper)
    assert "no room" not in caplog.text
    desk.keeper.open(transfer("tx-4"))
    assert "no room" in caplog.text
    desk.keeper.fail("tx-4", is_certain=True)
    await until(lambda: desk.notes == [FREED])
