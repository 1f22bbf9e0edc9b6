"""The pool as placement needs it: one view, its walks computed once.

Knows no cursor and no policy. Invariant: every prefill slot in a group has at least one decode slot
that it may be paired with; nothing here changes after it is made (groups are made at first use).

A *group* is (model, transfer mode) and has one walk over its prefill slots. Where each of them may
be paired with each decode slot, the group has one *lane*. Otherwise (tensor-parallel sizes or
models that do not all fit) prefill slots with the same decode candidates share a lane, and each
lane has its own decode walk and cursor: one cursor over disjoint candidates would starve slots.
"""

from collections.abc import Iterable, Sequence
from math import lcm
from zlib import crc32

import msgspec

from sidecar.routing.instance import Connector, Instance, Role, TransferMode, Version
from sidecar.routing.slots import NoPlacementReason, Target, Walk
from sidecar.routing.view import Member, View

PLAIN_DECODE_SINCE = {TransferMode.READ: Version(0, 33), TransferMode.WRITE: Version(0, 32)}
"""From here on a decode engine with MoRI-IO serves a request without KV parameters right (protocol
c). An older one in READ answers with garbage and status 200, in WRITE it may wait for ever."""


Pairs = tuple[Member, list[Member]]
"""a prefill member, and the decode members that it may be paired with (at least one)"""


class Lane:
    """Prefill slots that share their decode candidates."""

    __slots__ = ("cycle", "decode", "fingerprint", "name")

    def __init__(self, name: str, prefill: Walk, decode: Walk) -> None:
        self.name = name
        """its cursor's group; the whole group's when it is the only lane"""
        self.decode = decode
        self.cycle = lcm(len(prefill), len(decode))
        """requests from seam to seam"""
        self.fingerprint = crc32(msgspec.msgpack.encode((prefill.keys, decode.keys)))


class Group:
    """All that may serve one model in one transfer mode."""

    __slots__ = ("lanes", "mode", "name", "prefill")

    def __init__(self, name: str, mode: TransferMode, pairs: Sequence[Pairs]) -> None:
        self.name = name
        self.mode = mode
        self.prefill = Walk(prefill for prefill, _ in pairs)
        lanes = _lanes(name, pairs)
        self.lanes = tuple(lanes[target.member.ordinal] for target in self.prefill.targets)
        """the lane of each prefill slot, at its index in `prefill`"""

    def __repr__(self) -> str:
        lanes = len({lane.name for lane in self.lanes})
        return f"Group({self.name!r}, {len(self.prefill)} prefill slots, {lanes} lanes)"


class Pool:
    """A view with its walks, by model. One pick costs a few microseconds because this is kept."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.models = frozenset(name for member in view.members for name in member.models)
        """every name that a member serves, placeable or not"""
        self._parents = {
            card.name: card.parent
            for member in view.members
            for card in member.cards
            if card.parent is not None
        }
        """of the adapters: the model that each belongs to"""
        self._by_address = {member.instance.address: member for member in view.members}
        self._groups: dict[str, tuple[Group, ...]] = {}
        self._aggregated: dict[tuple[str, Role], Walk] = {}
        self._any_role: dict[str, Walk] = {}

    def __repr__(self) -> str:
        counts = {role.value: len(self.view.placeable(role)) for role in Role}
        return f"Pool(view {self.view.number}, placeable {counts}, {len(self.models)} models)"

    def group_model(self, model: str | None) -> str:
        """The model part of the group: `""` when no member serves that name.

        Then every member is a candidate, and the engine answers with its own 404. The number of
        groups is thus bounded by the pool, whatever clients write.
        """
        return model if model is not None and model in self.models else ""

    def is_for_a_pair(self, model: str | None) -> bool:
        """False: nobody serves it, as far as all have said; or it is an adapter that only one role
        has said it has: adapters are loaded on one engine after the other, while they run."""
        if model is None:
            return True
        if model not in self.models:
            return any(member.is_placeable and not member.models for member in self.view.members)
        return model not in self._parents or all(
            any(_may_serve(m, model) for m in self.view.members if m.instance.role is role)
            for role in Role
        )

    def parent_of(self, model: str | None) -> str | None:
        """The model that an adapter belongs to; None: it is none, as far as known."""
        return self._parents.get(model) if model is not None else None

    def groups(self, model: str | None) -> tuple[Group, ...]:
        """The groups that can serve the model, READ first; none is empty."""
        name = self.group_model(model)
        groups = self._groups.get(name)
        if groups is None:
            groups = self._groups[name] = self._make_groups(name)
        return groups

    def aggregated(self, model: str | None, role: Role) -> Walk:
        """The slots that may serve a request of the model whole, of one role, of both modes."""
        name = self.group_model(model)
        walk = self._aggregated.get((name, role))
        if walk is None:
            members = self.candidates(name, role)
            if role is Role.DECODE:
                members = [member for member in members if serves_plain(member)]
            walk = self._aggregated[name, role] = Walk(members)
        return walk

    def any_role(self, model: str | None) -> Walk:
        """The slots for requests that run no model: prefill ones, else decode ones."""
        name = self.group_model(model)
        walk = self._any_role.get(name)
        if walk is None:
            members = self.candidates(name, Role.PREFILL) or self.candidates(name, Role.DECODE)
            walk = self._any_role[name] = Walk(members)
        return walk

    def candidates(self, model: str | None, role: Role) -> list[Member]:
        """Placeable members of a role that serve the model, or may: their models are unknown."""
        name = self.group_model(model)
        return [
            member for member in self.view.placeable(role) if not name or _may_serve(member, name)
        ]

    def lack(self, model: str | None) -> NoPlacementReason | None:
        """Why no P/D request for the model can be placed; None: it can."""
        if self.groups(model):
            return None
        has_prefill = bool(self.candidates(model, Role.PREFILL))
        return "no_decode_instance" if has_prefill else "no_prefill_instance"

    def is_placeable(self, target: Target) -> bool:
        """Whether a target of an earlier view may still be used: same record, still placeable."""
        member = self._by_address.get(target.member.instance.address)
        return (
            member is not None and member.is_placeable and member.instance == target.member.instance
        )

    def _make_groups(self, name: str) -> tuple[Group, ...]:
        prefill = self.candidates(name, Role.PREFILL)
        decode = self.candidates(name, Role.DECODE)
        groups = []
        for mode in TransferMode:
            pairs = [(p, [d for d in decode if compatible(p, d)]) for p in _in_mode(prefill, mode)]
            pairs = [(p, fitting) for p, fitting in pairs if fitting]
            if pairs:
                groups.append(Group(f"{name}|{mode}", mode, pairs))
        return tuple(groups)


def compatible(a: Member, b: Member) -> bool:
    """Whether a prefill and a decode instance may share a request, in either order.

    Same connector and transfer mode, one TP size divides the other (protocol d), and a model in
    common as far as known: KV of one model in an engine of another is garbage with status 200.
    """
    one, other = a.instance, b.instance
    if one.connector is not other.connector or one.transfer_mode is not other.transfer_mode:
        return False
    if not _tp_fits(one, other):
        return False
    return not a.models or not b.models or a.models == b.models or _share(a.models, b.models)


def serves_plain(member: Member) -> bool:
    """Whether the instance serves a request without KV parameters right (protocol c).

    Prefill always, and with NIXL decode too, which makes no difference between the two there; with
    MoRI-IO decode from a version on, so of an unknown one it does not.
    """
    instance, version = member.instance, member.version
    if instance.role is Role.PREFILL or instance.connector is Connector.NIXL:
        return True
    return version is not None and version >= PLAIN_DECODE_SINCE[instance.transfer_mode]


def _may_serve(member: Member, model: str) -> bool:
    """It serves the model, or has not said what it serves."""
    return not member.models or model in member.models


def _tp_fits(one: Instance, other: Instance) -> bool:
    small, large = sorted((one.tp_size, other.tp_size))
    return large % small == 0


def _share(some: tuple[str, ...], others: tuple[str, ...]) -> bool:
    return not set(some).isdisjoint(others)


def _in_mode(members: Iterable[Member], mode: TransferMode) -> list[Member]:
    return [member for member in members if member.instance.transfer_mode is mode]


def _lanes(group: str, pairs: Sequence[Pairs]) -> dict[int, Lane]:
    """The lane of each prefill member, by ordinal. A lane is named after its lowest prefill kind,
    not after its members, so that its cursor outlives a membership change."""
    sharing: dict[tuple[int, ...], list[Pairs]] = {}
    for prefill, decode in pairs:
        sharing.setdefault(tuple(member.ordinal for member in decode), []).append((prefill, decode))
    lanes: dict[int, Lane] = {}
    for sharers in sharing.values():
        members = [prefill for prefill, _ in sharers]
        tp_size, models = min((member.instance.tp_size, member.models) for member in members)
        name = group if len(sharing) == 1 else f"{group}#tp{tp_size}:{','.join(models)}"
        lane = Lane(name, Walk(members), Walk(sharers[0][1]))
        lanes.update((member.ordinal, lane) for member in members)
    return lanes
