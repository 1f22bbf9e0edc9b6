"""KV that nobody fetched: released where it is allowed and safe, else counted once."""

from collections.abc import Iterable

import msgspec
import pytest

from sidecar.app.orphans import Orphans
from sidecar.exchange.ledger import Closed
from sidecar.exchange.reasons import Outcome, Reason
from sidecar.exchange.records import Placed
from sidecar.routing.instance import Instance, Role, State, TransferMode, Version
from sidecar.routing.slots import Slot
from sidecar.routing.view import Member
from tests.edge.polling import until

READ, WRITE = TransferMode.READ, TransferMode.WRITE
V33 = Version(0, 33)
P, D = Slot("10.0.0.1:8000", 1), Slot("10.0.1.1:8000", 0)


class World:
    """A pool of one prefill and one decode engine, and what is sent and counted."""

    def __init__(self, *, is_allowed: bool = True, version: Version = V33) -> None:
        self.alive_since: float | None = 0.0
        self.version = version
        self.told: list[tuple[tuple[str, ...], object]] = []
        self.freed: list[tuple[Slot, bool]] = []
        self.orphans = Orphans(
            lambda slot, is_freed: self.freed.append((slot, is_freed)),
            self if is_allowed else None,
            self.find,
            defer_s=60.0,
        )

    async def send(self, addresses: Iterable[str], payload: bytes) -> bool:
        self.told.append((tuple(addresses), msgspec.msgpack.decode(payload)))
        return True

    def find(self, address: str) -> Member | None:
        if self.alive_since is None:
            return None
        role = Role.PREFILL if address == P.address else Role.DECODE
        host = address.partition(":")[0]
        return Member(
            instance=Instance(
                address=address,
                role=role,
                transfer_mode=WRITE,
                dp_size=2,
                kv_host=host,
                handshake_port=6301,
                notify_port=61005,
            ),
            ordinal=0,
            endpoint=address,
            state=State.READY,
            is_placeable=True,
            version=self.version,
            alive_since=self.alive_since,
        )

    async def counted(self) -> list[tuple[Slot, bool]]:
        await until(lambda: self.freed)
        return self.freed


def closed(**what: object) -> Closed:
    placed = Placed(
        exchange="e",
        worker=0,
        api="completions",
        model="m",
        is_streaming=True,
        mode=WRITE,
        prefill=P,
        decode=D,
        transfer_id="tx-e-1",
    )
    known = {"api": "completions", "model": "m", "is_streaming": True, "reason": None}
    return Closed(placed=placed, outcome=Outcome.CANCELLED, since=10.0, **known, **what)


@pytest.mark.asyncio
async def test_orphaned_kv_is_released_at_prefill() -> None:
    """Once, to the rank that holds it."""
    world = World()
    world.orphans.closed(closed(orphaned_since=11.0), 12.0)
    assert await world.counted() == [(P, True)]
    (notice,) = world.told
    assert notice[0] == ("tcp://10.0.0.1:61006",)
    assert notice[1] == {"type": "release", "transfer_id": "tx-e-1", "consumer_tp_size": 1}


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "world",
    [
        World(is_allowed=False),
        World(version=Version(0, 32)),
    ],
    ids=["not allowed", "too old"],
)
async def test_what_may_not_be_told_is_counted(world: World) -> None:
    """At the engine that keeps the blocks."""
    world.orphans.closed(closed(orphaned_since=11.0), 12.0)
    assert (world.freed, world.told) == ([(P, False)], [])


@pytest.mark.asyncio
@pytest.mark.parametrize(("age_s", "is_told"), [(29.0, True), (31.0, False)])
async def test_what_prefill_may_have_freed_by_itself_is_not_released(
    age_s: float, is_told: bool
) -> None:
    """After half of its `defer_timeout`: a notice that waited would come too late."""
    world = World()
    world.orphans.closed(closed(orphaned_since=11.0), 11.0 + age_s)
    assert await world.counted() == [(P, is_told)]
    assert len(world.told) == is_told


@pytest.mark.asyncio
@pytest.mark.parametrize("alive_since", [10.5, None])
async def test_a_new_life_of_prefill_is_told_nothing(alive_since: float | None) -> None:
    """It never had the transfer, and would keep the notice for ever."""
    world = World()
    world.alive_since = alive_since
    world.orphans.closed(closed(orphaned_since=11.0), 12.0)
    assert (world.freed, world.told) == ([(P, False)], [])


@pytest.mark.asyncio
async def test_an_engine_of_another_connector_is_told_nothing() -> None:
    """It is not the engine that its record says, so who knows who listens there."""
    world = World()
    wrong = msgspec.structs.replace(closed(orphaned_since=11.0), reason=Reason.WRONG_CONNECTOR)
    world.orphans.closed(wrong, 12.0)
    assert (world.freed, world.told) == ([(P, False)], [])


@pytest.mark.asyncio
async def test_an_exchange_that_left_nothing_is_no_concern() -> None:
    """The common case."""
    world = World()
    world.orphans.closed(closed(), 12.0)
    assert (world.freed, world.told) == ([], [])
    await world.orphans.close()
