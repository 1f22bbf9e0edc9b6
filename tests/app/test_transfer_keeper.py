"""What decode waits for: ended, told, or counted; and never forgotten when a worker dies."""

import asyncio
from collections.abc import Iterable
from pathlib import Path

import pytest

from sidecar.app.transfer_keeper import TransferKeeper
from sidecar.edge.transfer_journal import TransferJournal
from sidecar.exchange.records import Record, TransferFailed
from sidecar.exchange.transfer import Transfer
from sidecar.routing.instance import Instance, Role, State, TransferMode
from sidecar.routing.slots import Slot
from sidecar.routing.view import Member, View
from sidecar.wire.kv_notice import Notice
from tests.edge.polling import until

P, D = "10.0.0.1:8000", Slot("10.0.1.1:8000", 2)
NOW = 1000.0
NOTICE = Notice(("tcp://10.0.1.1:61007",), b"write_failed")


def transfer(name: str = "tx-1", notice: Notice | None = NOTICE) -> Transfer:
    return Transfer(transfer_id=name, prefill=P, since=100.0, decode=D, notice=notice)


def view(alive_since: float) -> View:
    """A pool in which the prefill engine is known to have been alive since then."""
    instance = Instance(
        address=P, role=Role.PREFILL, transfer_mode=TransferMode.WRITE, kv_host="10.0.0.1"
    )
    member = Member(
        instance=instance,
        ordinal=0,
        endpoint=P,
        state=State.READY,
        is_placeable=True,
        alive_since=alive_since,
    )
    return View(number=1, members=(member,))


class Engines:
    """Takes notices, as a KvNotifier would deliver them."""

    def __init__(self, *, is_there: bool = True) -> None:
        self.is_there = is_there
        self.told: list[tuple[tuple[str, ...], bytes]] = []

    async def send(self, addresses: Iterable[str], payload: bytes) -> bool:
        if self.is_there:
            self.told.append((tuple(addresses), payload))
        return self.is_there


class Desk:
    """A keeper with its journal in a file, as one worker after another has it."""

    def __init__(self, path: Path, engines: Engines | None, push_limit_s: float = 0.05) -> None:
        self.notes: list[Record] = []
        self.journal = TransferJournal(path)
        self.keeper = TransferKeeper(self.journal, engines, self.notes.append, push_limit_s)

    async def noted(self) -> list[Record]:
        await until(lambda: self.notes)
        return self.notes


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "transfers.w0"


@pytest.mark.asyncio
async def test_a_transfer_that_ends_well_leaves_nothing(path: Path) -> None:
    """Nobody waits: no notice, no record, no journal entry."""
    engines = Engines()
    desk = Desk(path, engines)
    desk.keeper.open(transfer())
    desk.keeper.end("tx-1", is_answered=False)
    assert (engines.told, desk.notes) == ([], [])
    assert TransferJournal(path).leftovers == {}
    assert "open=0 answered=0" in repr(desk.keeper)


@pytest.mark.asyncio
@pytest.mark.parametrize("is_there", [True, False])
async def test_a_failed_transfer_is_told_to_decodes_engine(path: Path, is_there: bool) -> None:
    """And noted as freed only if the engine took the notice."""
    engines = Engines(is_there=is_there)
    desk = Desk(path, engines)
    desk.keeper.open(transfer())
    desk.keeper.fail("tx-1", is_certain=True)
    assert await desk.noted() == [TransferFailed(decode=D, is_freed=is_there)]
    assert engines.told == ([(NOTICE.addresses, NOTICE.payload)] if is_there else [])
    assert TransferJournal(path).leftovers == {}


@pytest.mark.asyncio
async def test_an_uncertain_failure_waits_until_no_push_can_come(path: Path) -> None:
    """Blocks that are freed earlier could be written by a prefill engine that is still at it."""
    engines = Engines()
    desk = Desk(path, engines, push_limit_s=3600)
    desk.keeper.open(transfer())
    desk.keeper.fail("tx-1", is_certain=False)
    await asyncio.sleep(0.1)
    assert engines.told == []
    assert len(TransferJournal(path).leftovers) == 1
    await desk.keeper.close()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("engines", "notice"), [(None, NOTICE), (Engines(), None)], ids=["not allowed", "too old"]
)
async def test_what_may_not_be_told_is_counted(
    path: Path, engines: Engines | None, notice: Notice | None
) -> None:
    """At once, and nothing is sent."""
    desk = Desk(path, engines)
    desk.keeper.open(transfer(notice=notice))
    desk.keeper.fail("tx-1", is_certain=True)
    assert desk.notes == [TransferFailed(decode=D, is_freed=False)]
    assert engines is None or engines.told == []
    assert TransferJournal(path).leftovers == {}


@pytest.mark.asyncio
async def test_the_next_worker_tells_what_the_last_one_left(path: Path) -> None:
    """Open ones, and those whose notice was still waiting."""
    first = Desk(path, Engines(), push_limit_s=3600)
    first.keeper.open(transfer("tx-open"))
    first.keeper.open(transfer("tx-failing"))
    first.keeper.fail("tx-failing", is_certain=False)
    await first.keeper.close()  # the tasks alone end: a killed process closes no more than that
    engines = Engines()
    second = Desk(path, engines)
    second.keeper.recover(NOW)
    await until(lambda: len(second.notes) == 2)
    assert second.notes == [TransferFailed(decode=D, is_freed=True)] * 2
    assert len(engines.told) == 2
    assert TransferJournal(path).leftovers == {}


@pytest.mark.asyncio
async def test_entries_of_another_version_are_dropped(path: Path) -> None:
    """They cannot be read, so nobody can be told."""
    TransferJournal(path).put(b"\xc1 not a transfer")
    desk = Desk(path, Engines())
    desk.keeper.recover(NOW)
    assert TransferJournal(path).leftovers == {}
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
    desk.keeper.see(view(50.0))
    desk.keeper.open(transfer())
    desk.keeper.end("tx-1", is_answered=True)
    desk.keeper.see(view(99.0))
    assert "answered=1" in repr(desk.keeper)
    desk.keeper.see(view(100.5))
    await until(lambda: engines.told)
    assert engines.told == [(NOTICE.addresses, NOTICE.payload)]
    await until(lambda: TransferJournal(path).leftovers == {})
    assert desk.notes == []


@pytest.mark.asyncio
async def test_what_was_answered_long_ago_is_forgotten(path: Path) -> None:
    """Oldest first, and no younger one."""
    desk = Desk(path, Engines())
    for name in ("tx-1", "tx-2"):
        desk.keeper.open(transfer(name))
        desk.keeper.end(name, is_answered=True)
    second = desk.keeper._answered["tx-2"][2]
    desk.keeper.forget_before(second - 1e-9)
    assert list(desk.keeper._answered) == ["tx-2"]
    assert len(TransferJournal(path).leftovers) == 1
    desk.keeper.forget_before(second)
    assert TransferJournal(path).leftovers == {}


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
    second.keeper.see(view(100.5))
    await until(lambda: engines.told)


@pytest.mark.asyncio
async def test_what_is_from_before_a_reboot_is_dropped(path: Path) -> None:
    """Its times are of another clock."""
    first = Desk(path, Engines())
    first.keeper.open(transfer())
    second = Desk(path, Engines())
    second.keeper.recover(now=99.0)
    assert "open=0 answered=0 failing=0" in repr(second.keeper)
    assert TransferJournal(path).leftovers == {}
