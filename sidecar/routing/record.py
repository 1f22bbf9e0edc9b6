"""One instance's record in the registry, what is said of its changes, and its form on disk.

Knows no other record and no rule of placement.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import ip_address

import msgspec

from sidecar.routing.instance import Connector, Instance, State, Version
from sidecar.routing.model_card import ModelCard
from sidecar.routing.probe import ProbeOutcome
from sidecar.routing.standing import Standing
from sidecar.routing.view import Member


class ChangeKind(StrEnum):
    JOINED = "joined"
    CHANGED = "changed"
    MOVED_ROLE = "moved_role"
    RETURNED = "returned"
    READY = "ready"
    UNHEALTHY = "unhealthy"
    EJECTED = "ejected"
    RECOVERED = "recovered"
    """no longer ejected"""
    DESCRIBED = "described"
    RESOLVED = "resolved"
    UNRESOLVED = "unresolved"
    EXPIRED = "expired"
    LEAVING = "leaving"
    REJOINED = "rejoined"
    REMOVED = "removed"
    CONFLICT = "conflict"
    """heartbeats of a static instance say something else than the configuration, which wins"""


class Change(msgspec.Struct, frozen=True):
    """Something to log once: what happened to an instance."""

    kind: ChangeKind
    instance: Instance
    detail: str = ""
    warning: str = ""
    """what an operator should know of this record; empty: nothing"""


class SavedRecord(msgspec.Struct, frozen=True):
    """A record as it is kept over a restart."""

    instance: Instance
    ordinal: int
    heard_at: float
    """wall clock, seconds since the epoch"""
    endpoint: str | None = None
    """so that running exchanges keep theirs while a name is resolved again"""
    is_leaving: bool = False
    alive_since: float = 0.0
    """monotonic seconds, of the same boot if they are in the past"""


class SavedPool(msgspec.Struct, frozen=True):
    """The registry as it is kept over a restart."""

    next_ordinal: int = 0
    records: tuple[SavedRecord, ...] = ()
    ordinals: dict[str, int] = {}
    """of instances that are static, or gone and remembered; by address"""


@dataclass(slots=True)
class Record:
    """What the registry holds of one instance; the registry alone changes it."""

    instance: Instance
    ordinal: int
    generation: int
    """a number of its own for each life, and for each process of one that was seen to go: probe
    results of an earlier one are ignored"""
    heard_at: float | None
    """monotonic seconds; None: never (static)"""
    endpoint: str | None
    alive_since: float
    """Monotonic seconds: what was placed there before lies at an engine that has died."""
    health: State = State.UNPROBED
    """UNPROBED, READY or UNHEALTHY: what the probes say"""
    timeouts: int = 0
    """probes in a row that timed out"""
    is_gone: bool = False
    """a probe was refused, and none was good since"""
    standing: Standing = field(default_factory=Standing)
    """what real requests say"""
    version: Version | None = None
    cards: tuple[ModelCard, ...] = ()
    """While it is gone: those of before. A request for a model that is away must not be placed on
    an engine of another, as one for a name that nobody knows is."""
    is_expired: bool = False
    is_leaving: bool = False
    out_since: float | None = None
    """monotonic seconds since it is expired, or told to leave"""
    conflict: Instance | None = None
    """the last heartbeat that contradicted the configuration, so it is said once"""

    @property
    def state(self) -> State:
        """The strongest of what keeps it out. One that is ejected and whose probes fail as well is
        `unhealthy`; so `ejected` always means that `/health` is good and requests fail."""
        if self.is_expired:
            return State.EXPIRED
        if self.is_leaving:
            return State.LEAVING
        is_out = self.health is State.READY and self.standing.is_ejected
        return State.EJECTED if is_out else self.health

    def member(self, *, is_listed: bool) -> Member:
        """As placement sees it. `is_listed`: it is the one of its endpoint, and Envoy has it."""
        return Member(
            instance=self.instance,
            ordinal=self.ordinal,
            endpoint=self.endpoint or "",
            state=self.state,
            is_placeable=self.state is State.READY and is_listed,
            version=self.version,
            models=tuple(card.name for card in self.cards),
            cards=self.cards,
            alive_since=self.alive_since,
        )

    def saved(self, heard_at: float) -> SavedRecord:
        """As it is kept over a restart; `heard_at` by the wall clock."""
        return SavedRecord(
            self.instance, self.ordinal, heard_at, self.endpoint, self.is_leaving, self.alive_since
        )

    def note_probe(self, outcome: ProbeOutcome, now: float) -> bool:
        """Whether it says that the engine's process has gone, and with it all that it held.

        Of refusals the first alone: nothing is placed there, and nothing learned of it, until it
        answers again. What answers then may be of another version."""
        if outcome is ProbeOutcome.OK:
            self.is_gone = False
        if outcome is not ProbeOutcome.REFUSED or self.is_gone:
            return False
        self.is_gone = True
        self.alive_since = now
        self.version = None
        return True

    def begin_life(self, instance: Instance, generation: int, now: float) -> None:
        """A record that is not the one probed before: nothing known of it holds any more but its
        place in the walk and its endpoint (the address is the same)."""
        self.instance = instance
        self.generation = generation
        self.alive_since = now
        self.is_gone = False
        self.health = State.UNPROBED
        self.timeouts = 0
        self.standing = Standing()
        self.version = None
        self.cards = ()
        self.is_expired = False
        self.is_leaving = False
        self.out_since = None


def warning_of(instance: Instance) -> str:
    """What an operator should know of a record that is accepted all the same; empty: nothing."""
    is_moriio = instance.connector is Connector.MORIIO
    if is_moriio and instance.dp_size > 1 and instance.tp_size > 1:
        # protocol d: the listeners of (dp 0, tp 1) and (dp 1, tp 0) share a port.
        return "dp_size > 1 with tp_size > 1 does not work in vLLM: its transfer ports collide"
    return ""


def literal_endpoint(address: str) -> str | None:
    """The endpoint of an address whose host is an IP; a name must be resolved first."""
    host = address.rpartition(":")[0].removeprefix("[").removesuffix("]")
    try:
        ip_address(host)
    except ValueError:
        return None
    return address
