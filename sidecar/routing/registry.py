"""The registry: which instances there are, and which of them may be placed on (design §4).

Knows no socket, clock or log: `now` is monotonic seconds, events come in as calls, and what is
worth a log line goes out as a `Change`. Invariants: one record an address, whatever its role;
ordinals are unique and never reused by another address; nothing is ready that did not answer a
probe in this life.
"""

from collections.abc import Collection

import msgspec

from sidecar.errors import HeartbeatError
from sidecar.routing import ejection
from sidecar.routing.instance import Instance, State, Version
from sidecar.routing.model_card import ModelCard
from sidecar.routing.ordinals import Ordinals
from sidecar.routing.probe import ProbeOutcome, ProbeTarget
from sidecar.routing.record import (
    Change,
    ChangeKind,
    Record,
    SavedPool,
    literal_endpoint,
    warning_of,
)
from sidecar.routing.standing import EjectionRule, Evidence
from sidecar.routing.view import Member

MAX_HEARD = 4096
"""instances known by heartbeat alone; more is an attack or a bug, and each costs probes"""
MAX_HEARD_RANKS = 65536
"""ranks of all of them together: each is a slot in every worker's walk and a series in metrics"""
GRACE_S = 2.0
"""An instance that is out stays in the endpoint list at least this long: a worker may have placed
on it just before, and says so up to 50 ms later."""


class Registry:
    """All records. See the module for the invariants."""

    def __init__(
        self,
        ttl_s: float,
        probe_timeouts_to_fail: int = 3,
        linger_s: float = 120.0,
        ejection_rule: EjectionRule | None = None,
    ) -> None:
        """`ttl_s`: silence that expires a heard instance; engines ping every 3 s (protocol a).
        `linger_s`: how long the endpoint of a busy instance outlives it (the drain limit)."""
        self._ttl_s = ttl_s
        self._timeouts_to_fail = probe_timeouts_to_fail
        self._linger_s = linger_s
        self._ejection_rule = ejection_rule or EjectionRule()
        self._records: dict[str, Record] = {}
        self._static: set[str] = set()
        self._ordinals = Ordinals()
        self._generation = 0
        self._placed_by: tuple[int, dict[str, Record]] = (-1, {})
        """of that revision: endpoint -> the record that is placed on there"""
        self.revision = 0
        """grows whenever `members`, `endpoints` or `probe_targets` may have changed"""

    def __len__(self) -> int:
        return len(self._records)

    def __repr__(self) -> str:
        counts: dict[str, int] = {}
        for record in self._records.values():
            label = f"{record.instance.role} {record.state}"
            counts[label] = counts.get(label, 0) + 1
        shown = ", ".join(f"{label}: {count}" for label, count in sorted(counts.items()))
        return f"Registry({shown or 'empty'}; next ordinal {self._ordinals.next})"

    # --- what instances say

    def hear(self, instance: Instance, now: float) -> Change | None:
        """A heartbeat. None for the constant repeat. Raises HeartbeatError(`full`)."""
        record = self._records.get(instance.address)
        if record is None:
            if len(self._records) - len(self._static) >= MAX_HEARD:
                raise HeartbeatError("full", f"{MAX_HEARD} instances are registered already")
            self._check_ranks(instance, None)
            return self._add(instance, now)
        if record.instance.is_static:
            record.heard_at = now
            return self._hear_static(record, instance)
        was = record.instance
        if instance.dp_size > was.dp_size:
            self._check_ranks(instance, was)
        record.heard_at = now
        if instance == was and not record.is_expired:
            return None
        returns = record.is_expired
        record.begin_life(instance, self._new_generation(), now)
        if instance == was:
            kind = ChangeKind.RETURNED
        else:
            kind = ChangeKind.MOVED_ROLE if instance.role is not was.role else ChangeKind.CHANGED
        detail = "was expired" if returns and kind is not ChangeKind.RETURNED else ""
        return Change(kind, instance, detail, warning_of(instance))

    def add_static(self, instance: Instance, now: float) -> Change:
        """An instance of the configuration: needs no heartbeat, and what it says wins over them."""
        static = msgspec.structs.replace(instance, is_static=True)
        self._static.add(static.address)
        record = self._records.get(static.address)
        if record is None:
            return self._add(static, now)
        record.begin_life(static, self._new_generation(), now)
        return Change(ChangeKind.CHANGED, static, warning=warning_of(static))

    def leave(self, address: str, now: float) -> Change | None:
        """Take an instance out of placement until it falls silent, changes, or rejoins.

        For an operator who takes an engine down; the admin API does not offer it yet. None:
        unknown, or leaving already."""
        record = self._records.get(address)
        if record is None or record.is_leaving:
            return None
        record.is_leaving = True
        record.out_since = now if record.out_since is None else record.out_since
        return self._changed(ChangeKind.LEAVING, record)

    def rejoin(self, address: str) -> Change | None:
        """Take back `leave`. Its probes went on, so it is ready at once if they say so."""
        record = self._records.get(address)
        if record is None or not record.is_leaving:
            return None
        record.is_leaving = False
        record.out_since = record.out_since if record.is_expired else None
        return self._changed(ChangeKind.REJOINED, record)

    # --- what the prober says

    def probe_result(
        self, address: str, generation: int, outcome: ProbeOutcome, now: float
    ) -> Change | None:
        """A finished probe; ignored when it belongs to an earlier life of the record.

        200: ready, and back if it was ejected and its back-off is over. No answer, or not 200: out
        at once. Timed out: out after so many in a row, because one slow answer at peak load must
        not empty the pool. Refused: its process is gone, so what comes next is to be watched as a
        new one (design §4)."""
        record = self._of_life(address, generation)
        if record is None:
            return None
        has_gone = record.note_probe(outcome, now)
        if has_gone and record.health is not State.UNPROBED:  # else nothing was learned of it
            record.generation = self._new_generation()
        if outcome is ProbeOutcome.TIMEOUT:
            record.timeouts += 1
            if record.timeouts < self._timeouts_to_fail:
                return None
            health = State.UNHEALTHY
        else:
            record.timeouts = 0
            health = State.READY if outcome is ProbeOutcome.OK else State.UNHEALTHY
        was, record.health = record.health, health
        if outcome is ProbeOutcome.OK and record.standing.is_backoff_over(now):
            record.standing.restore(now)
            return self._changed(ChangeKind.RECOVERED, record, f"probe: {outcome}")
        if health is was and not has_gone:
            return None
        kind = ChangeKind.READY if health is State.READY else ChangeKind.UNHEALTHY
        if kind is ChangeKind.READY:
            record.standing.begin_spell(now)
        return self._changed(kind, record, f"probe: {outcome}{record.standing.remark(now)}")

    def describe(
        self, address: str, generation: int, version: Version | None, cards: tuple[ModelCard, ...]
    ) -> Change | None:
        """What the instance says it runs; None and empty where that is unknown, which must be said
        too before it is ready again: the models of before are kept until then."""
        record = self._of_life(address, generation)
        if record is None or (record.version, record.cards) == (version, cards):
            return None
        record.version, record.cards = version, cards
        shown = f"vLLM {version.major}.{version.minor}" if version else "vLLM of unknown version"
        names = ", ".join(card.name for card in cards)
        return self._changed(ChangeKind.DESCRIBED, record, f"{shown}, models {names}")

    def resolved(self, address: str, generation: int, endpoint: str | None) -> Change | None:
        """The `ip:port` of an instance known by name; None: the name is not known."""
        record = self._of_life(address, generation)
        if record is None or record.endpoint == endpoint:
            return None
        record.endpoint = endpoint
        kind = ChangeKind.RESOLVED if endpoint else ChangeKind.UNRESOLVED
        return self._changed(kind, record, endpoint or "the name is not known")

    # --- what real requests say

    def judge(self, evidence: Evidence, now: float) -> Change | None:
        """How one leg went. A change is the instance's ejection, for `evidence.failure`."""
        where = evidence.where
        record = self._by_endpoint().get(where) or self._records.get(where)
        if record is None or not ejection.is_due(
            record, evidence, self._ejection_rule, self._records.values()
        ):
            return None
        assert evidence.failure is not None, "success ejects nobody"
        record.standing.eject(evidence.failure, now, self._ejection_rule)
        detail = f"{evidence.failure}, for {record.standing.until - now:g} s"
        return self._changed(ChangeKind.EJECTED, record, detail)

    def stood_still(self, now: float) -> None:
        """We did, so requests failed by our own clocks: those placed before `now` say nothing."""
        for record in self._records.values():
            record.standing.since = now

    def _by_endpoint(self) -> dict[str, Record]:
        """Of two records with one endpoint the one that `members` calls the first."""
        revision, found = self._placed_by
        if revision != self.revision:
            found = {}
            for record in self._in_order():
                if record.endpoint is not None:
                    found.setdefault(record.endpoint, record)
            self._placed_by = (self.revision, found)
        return found

    # --- time

    def sweep(self, now: float, busy: Collection[str]) -> list[Change]:
        """Expire the silent, remove those that are out and no longer needed, and bring back who
        may no longer be ejected as others went (`ejection.pardoned`).

        `busy`: addresses with open exchanges. Their records, and so their endpoints in Envoy, stay
        until the last one ended or `linger_s` passed. To be called about once a second."""
        changes = []
        for address, record in list(self._records.items()):
            if self._is_silent(record, now) and not record.is_expired:
                record.is_expired = True
                record.out_since = now if record.out_since is None else record.out_since
                changes.append(self._changed(ChangeKind.EXPIRED, record))
            if self._is_removable(record, now, address in busy):
                del self._records[address]
                self._static.discard(address)
                self._ordinals.remember(address, record.ordinal)
                changes.append(self._changed(ChangeKind.REMOVED, record))
        for record in ejection.pardoned(self._records.values()):
            record.standing.restore(now)
            changes.append(self._changed(ChangeKind.RECOVERED, record, "too few others are left"))
        return changes

    def ages(self, now: float) -> dict[str, float]:
        """Seconds since each instance was last heard; those never heard are left out."""
        return {
            address: now - record.heard_at
            for address, record in self._records.items()
            if record.heard_at is not None
        }

    # --- what others see

    def members(self, acked: frozenset[str] | None) -> tuple[Member, ...]:
        """Every instance that is not gone, by ordinal.

        `acked`: the endpoints that every connected Envoy has; None: not gated (design §4). Of two
        records with one endpoint (a name and an address of the same engine) the static or older one
        alone is placeable: it would serve twice its share."""
        taken: set[str] = set()
        members = []
        for record in self._in_order():
            endpoint = record.endpoint
            is_first = endpoint is not None and endpoint not in taken
            if endpoint is not None:
                taken.add(endpoint)
            is_known = acked is None or endpoint in acked
            members.append(record.member(is_listed=is_first and is_known))
        return tuple(sorted(members, key=lambda member: member.ordinal))

    def endpoints(self) -> list[str]:
        """What Envoy's endpoint list has: all that are not gone and resolved, sorted, each once."""
        return sorted({record.endpoint for record in self._records.values() if record.endpoint})

    def probe_targets(self) -> list[ProbeTarget]:
        """What to probe: all but the expired. A leaving one too, so that it can rejoin."""
        return [
            ProbeTarget(address, record.instance.base_url, record.generation)
            for address, record in self._records.items()
            if not record.is_expired
        ]

    # --- over a restart

    def to_file(self, now: float, wall_now: float) -> SavedPool:
        """What to keep. `wall_now` is seconds since the epoch at the moment `now`."""
        records = tuple(
            record.saved(wall_now - (now - record.heard_at))
            for record in self._records.values()
            if record.heard_at is not None and not record.instance.is_static
        )
        ordinals = dict(self._ordinals.gone)
        ordinals.update(
            (address, record.ordinal)
            for address, record in self._records.items()
            if record.instance.is_static
        )
        return SavedPool(self._ordinals.next, records, ordinals)

    def from_file(self, saved: SavedPool, now: float, wall_now: float) -> list[Change]:
        """Take up what an earlier process kept; to be called first, on an empty registry.

        Records younger than the TTL come back as heard at that age and must be probed; of older
        ones only the ordinal is kept."""
        assert not self._records, "from_file is called on an empty registry"
        ordinals = dict(saved.ordinals)
        for kept in saved.records:
            ordinals.setdefault(kept.instance.address, kept.ordinal)
        self._ordinals.recall(ordinals, saved.next_ordinal)
        changes = []
        for kept in saved.records:
            # A wall clock that was set back must not make a record younger than just heard.
            age = max(0.0, wall_now - kept.heard_at)
            address = kept.instance.address
            if age > self._ttl_s or address in self._records or len(self._records) >= MAX_HEARD:
                continue
            changes.append(self._add(kept.instance, now - age))
            record = self._records[address]
            record.is_leaving = kept.is_leaving
            record.out_since = now if kept.is_leaving else None
            record.endpoint = record.endpoint or kept.endpoint
            if kept.alive_since <= now:
                record.alive_since = kept.alive_since
        return changes

    # --- inside

    def _add(self, instance: Instance, now: float) -> Change:
        ordinal, is_back = self._ordinals.of(instance.address)
        self._records[instance.address] = Record(
            instance=instance,
            ordinal=ordinal,
            generation=self._new_generation(),
            heard_at=None if instance.is_static else now,
            endpoint=literal_endpoint(instance.address),
            alive_since=now,
        )
        kind = ChangeKind.RETURNED if is_back else ChangeKind.JOINED
        return Change(kind, instance, warning=warning_of(instance))

    def _hear_static(self, record: Record, heard: Instance) -> Change | None:
        configured = record.instance
        same = msgspec.structs.replace(heard, is_static=True, scheme=configured.scheme)
        if same == configured or heard == record.conflict:
            return None
        record.conflict = heard
        return Change(
            ChangeKind.CONFLICT, configured, "its heartbeats differ", "configuration wins"
        )

    def _check_ranks(self, instance: Instance, was: Instance | None) -> None:
        heard = sum(
            record.instance.dp_size
            for record in self._records.values()
            if not record.instance.is_static
        )
        if heard - (was.dp_size if was else 0) + instance.dp_size > MAX_HEARD_RANKS:
            detail = f"with dp_size {instance.dp_size} there were over {MAX_HEARD_RANKS} ranks"
            raise HeartbeatError("full", detail)

    def _in_order(self) -> list[Record]:
        """The static first, then the older ones: of two with one endpoint the first counts."""
        return sorted(self._records.values(), key=lambda r: (not r.instance.is_static, r.ordinal))

    def _of_life(self, address: str, generation: int) -> Record | None:
        record = self._records.get(address)
        return record if record is not None and record.generation == generation else None

    def _is_silent(self, record: Record, now: float) -> bool:
        if record.instance.is_static or record.heard_at is None:
            return False
        return now - record.heard_at > self._ttl_s

    def _is_removable(self, record: Record, now: float, is_busy: bool) -> bool:
        # One told to leave that still pings stays known: removed, it would join again at its next
        # heartbeat. A static one sends none, so nothing brings it back.
        if record.out_since is None or not (record.is_expired or record.instance.is_static):
            return False
        waited = now - record.out_since
        return waited >= (self._linger_s if is_busy else GRACE_S)

    def _changed(self, kind: ChangeKind, record: Record, detail: str = "") -> Change:
        self.revision += 1
        return Change(kind, record.instance, detail=detail)

    def _new_generation(self) -> int:
        self._generation += 1
        self.revision += 1
        return self._generation
