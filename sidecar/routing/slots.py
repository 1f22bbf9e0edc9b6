"""Slots in walking order, the walk's cursor, and the words of a pick: demand and placement.

Knows no pool and no policy. Invariant: a walk's keys are sorted and unique; a cursor is the key
last served, never an index, so it means the same in every view of the pool (design §5).
"""

from bisect import bisect_right
from collections.abc import Iterable
from typing import Literal, Protocol

import msgspec

from sidecar.routing.instance import Instance, Role, TransferMode
from sidecar.routing.view import Member

Key = tuple[int, int]
"""(dp_rank, ordinal of the instance): sorted, it is rank-major, instances alternating"""

NoPlacementReason = Literal["no_prefill_instance", "no_decode_instance"]


class Slot(msgspec.Struct, frozen=True):
    """One (instance, dp_rank)."""

    address: str
    dp_rank: int


class Target(msgspec.Struct, frozen=True):
    """A slot with the instance it belongs to: where one leg goes."""

    member: Member
    dp_rank: int

    @property
    def slot(self) -> Slot:
        return Slot(self.member.instance.address, self.dp_rank)

    @property
    def key(self) -> Key:
        return (self.dp_rank, self.member.ordinal)

    @property
    def rank_header(self) -> str | None:
        """`x-data-parallel-rank` of the leg; None: forward no rank (dp_size 1)."""
        return str(self.dp_rank) if self.member.instance.dp_size > 1 else None


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """What one request asks of placement."""

    model: str | None = None
    """the name in its body; None: it names none"""
    is_model_free: bool = False
    """runs no model: any one instance will do"""
    is_aggregated: bool = False
    """served whole by one instance"""
    aggregated_role: Role = Role.PREFILL
    """which role serves aggregated requests; a decode instance only where that is safe"""
    excluded: frozenset[Slot] = frozenset()
    """slots that must not be handed out: those this request has tried"""


class Placement(msgspec.Struct, frozen=True):
    """Where a request goes. Aggregated: one of the two is None."""

    prefill: Target | None
    decode: Target | None
    mode: TransferMode
    spare: Target | None = None
    """READ: where Envoy may turn if the decode target refuses the connection"""

    @property
    def answering(self) -> Target:
        """The target whose answer the client gets."""
        target = self.decode or self.prefill
        assert target is not None, "a placement has at least one target"
        return target


class NoPlacement(msgspec.Struct, frozen=True):
    """No slot can be had; `reason` is the one of the reply (design §6)."""

    reason: NoPlacementReason


class Cursor(msgspec.Struct, frozen=True):
    """Where the walk of a group stands."""

    prefill: Key | None = None
    """last served; None: none yet"""
    decode: Key | None = None
    served: int = 0
    """requests since the last membership change: the seam counter k (design §5)"""
    fingerprint: int = 0
    """of the candidate keys that `served` counts for, 32 bits"""


class Cursors(Protocol):
    """Where cursors are kept between picks.

    One pick makes up to three gets and puts, of different groups: whoever shares cursors between
    processes holds the lock around the whole pick.
    """

    def get(self, group: str) -> Cursor:
        """The group's cursor; `Cursor()` for one never put."""

    def put(self, group: str, cursor: Cursor) -> None: ...


class MemoryCursors:
    """Cursors of one process, and of tests."""

    def __init__(self) -> None:
        self._cursors: dict[str, Cursor] = {}

    def get(self, group: str) -> Cursor:
        return self._cursors.get(group) or Cursor()

    def put(self, group: str, cursor: Cursor) -> None:
        self._cursors[group] = cursor

    def __repr__(self) -> str:
        return f"MemoryCursors({self._cursors})"


class Walk:
    """The slots of some instances of one role, rank-major: inst0 r0, inst1 r0, …, inst0 r1, …

    Instances with fewer ranks drop out of later rounds, so every lap has each slot exactly once.
    """

    __slots__ = ("keys", "targets")

    def __init__(self, members: Iterable[Member]) -> None:
        targets = [Target(member, rank) for member in members for rank in _ranks(member.instance)]
        targets.sort(key=lambda target: target.key)
        self.targets = tuple(targets)
        self.keys = tuple(target.key for target in targets)

    def __len__(self) -> int:
        return len(self.keys)

    def __repr__(self) -> str:
        return f"Walk({len(self)} slots)"

    def after(self, last: Key | None, skip: int = 0) -> int:
        """Index of the slot to serve next: the smallest key above `last`, else the smallest.

        `skip` slots are passed over first. The walk must not be empty.
        """
        start = 0 if last is None else bisect_right(self.keys, last)
        return (start + skip) % len(self.keys)

    def open_after(self, start: int, excluded: frozenset[Slot]) -> int | None:
        """The first index from `start` on, once around, whose slot is not excluded."""
        size = len(self.keys)
        for step in range(size):
            at = (start + step) % size
            if self.targets[at].slot not in excluded:
                return at
        return None


def every_slot(instance: Instance) -> frozenset[Slot]:
    """All slots of an instance: what a retry excludes when the instance itself did not answer."""
    return frozenset(Slot(instance.address, rank) for rank in _ranks(instance))


def _ranks(instance: Instance) -> range:
    return range(instance.dp_size)
