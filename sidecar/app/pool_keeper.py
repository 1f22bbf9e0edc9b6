"""Keeps the pool: what is heard and probed goes into the registry, what follows goes to Envoy and
workers.

One synchronous `refresh` computes everything that depends on the registry; callbacks only ask for
it. What it costs grows with the pool, so while changes come thick (a flood of registrations, a
restart of everything) one refresh serves many of them.
"""

import logging
from collections.abc import Callable, Mapping
from time import monotonic

import msgspec

from sidecar.app.accounting import Accounting
from sidecar.errors import HeartbeatError
from sidecar.routing.instance import Connector, Instance, Role, State, Version
from sidecar.routing.model_card import ModelCard
from sidecar.routing.probe import ProbeOutcome, ProbeTarget
from sidecar.routing.record import Change, ChangeKind
from sidecar.routing.registry import Registry
from sidecar.routing.slots import Slot
from sidecar.routing.standing import Evidence
from sidecar.routing.view import Member, View
from sidecar.telemetry.metrics import Metrics

log = logging.getLogger(__name__)

REST = 4.0
"""After a refresh the next waits so many times as long as it took. With 8 instances that is 0.2 ms;
with 4096 each took 60 ms, and 4096 that joined at once kept the control process from its beats."""


class Outlets(msgspec.Struct, frozen=True, kw_only=True):
    """Where the consequences go."""

    endpoints: Callable[[list[str]], None]
    """the endpoint list of Envoy's cluster `engines`"""
    probes: Callable[[list[ProbeTarget]], None]
    view: Callable[[View], None]
    acked: Callable[[float], frozenset[str] | None]
    """endpoints that every gating Envoy has; None: not gated"""
    later: Callable[[float, Callable[[], None]], object] = lambda _seconds, act: act()
    """call something in so many seconds"""


class PoolKeeper:
    def __init__(
        self,
        registry: Registry,
        accounting: Accounting,
        metrics: Metrics,
        static_models: dict[str, tuple[str, ...]],
        connector: Connector = Connector.MORIIO,
    ) -> None:
        """`connector`: the pool's, and of nobody else who registers."""
        self.registry = registry
        self.view = View(number=0)
        self._accounting = accounting
        self._metrics = metrics
        self._static_models = static_models
        self._connector = connector
        self._outlets: Outlets | None = None
        self._revision = -1
        self._removed: set[str] = set()
        """addresses that left the pool and whose series are still there"""
        self._is_draining = False
        self._rests_until = 0.0
        self._is_refresh_due = False

    def connect(self, outlets: Outlets) -> None:
        """From now on changes are handed out; the view at once, if empty: workers wait for one."""
        self._outlets = outlets
        outlets.view(self.view)
        self.refresh()

    # --- events

    def heard(self, instance: Instance, _sender: str) -> None:
        """Raises HeartbeatError(`full`, `connector`), which the listener counts."""
        if instance.connector is not self._connector:
            raise HeartbeatError(
                "connector",
                f"{instance.role} {instance.address} has the connector {instance.connector}, this "
                f"pool has connector: {self._connector}; start the engine with the pool's (engines "
                "with nixl are named in `instances`), or another router with the engine's",
            )
        self._metrics.heartbeats.inc()
        self._apply(self.registry.hear(instance, monotonic()))

    def rejected(self, reason: str, _detail: str) -> None:
        self._metrics.heartbeats_rejected.labels(reason).inc()

    def probed(self, address: str, generation: int, outcome: ProbeOutcome) -> None:
        self._apply(self.registry.probe_result(address, generation, outcome, monotonic()))

    def judged(self, evidence: Evidence) -> None:
        """How one leg of a real request went."""
        change = self.registry.judge(evidence, monotonic())
        if change is not None and evidence.failure is not None:
            self._metrics.ejections.labels(change.instance.address, evidence.failure).inc()
        self._apply(change)

    def stood_still(self, now: float) -> None:
        """The process did: no instance is to be blamed for what ran out of time meanwhile."""
        self.registry.stood_still(now)

    def described(
        self, address: str, generation: int, version: Version | None, cards: tuple[ModelCard, ...]
    ) -> None:
        named = self._static_models.get(address)
        if named:
            asked = {card.name: card for card in cards}
            cards = tuple(asked.get(name) or ModelCard(name) for name in named)
        self._apply(self.registry.describe(address, generation, version, cards))

    def resolved(self, address: str, generation: int, endpoint: str | None) -> None:
        self._apply(self.registry.resolved(address, generation, endpoint))

    def sweep(self, now: float) -> None:
        """To be called a few times a second."""
        busy = self._accounting.ledger.busy_addresses()
        for change in self.registry.sweep(now, busy):
            self._say(change)
            if change.kind is ChangeKind.REMOVED:
                self._removed.add(change.instance.address)
        self.refresh()
        self._forget(busy)

    def _forget(self, busy: set[str]) -> None:
        """A stream may outlive its instance's place in the pool, and its end makes series anew."""
        over = self._removed - busy
        self._removed -= over
        for address in over - {m.instance.address for m in self.view.members}:
            self._accounting.forget_instance(address)

    def drain(self) -> None:
        self._is_draining = True
        self.refresh()

    def refresh_soon(self) -> None:
        """Refresh now, or once for all that ask while it rests."""
        if self._outlets is None or self._is_refresh_due:
            return
        wait_s = self._rests_until - monotonic()
        if wait_s <= 0:
            self.refresh()
            return
        self._is_refresh_due = True
        self._outlets.later(wait_s, self.refresh)

    def refresh(self) -> None:
        """Hand out what changed: the endpoints first, so that their ACK is on its way."""
        self._is_refresh_due = False
        if self._outlets is None:
            return
        started = monotonic()
        try:
            self._hand_out(self._outlets)
        finally:
            now = monotonic()
            self._rests_until = now + REST * (now - started)

    def _hand_out(self, outlets: Outlets) -> None:
        if self.registry.revision != self._revision:
            self._revision = self.registry.revision
            outlets.endpoints(self.registry.endpoints())
            outlets.probes(self.registry.probe_targets())
        members = self.registry.members(outlets.acked(monotonic()))
        if (members, self._is_draining) != (self.view.members, self.view.is_draining):
            self.view = View(
                number=self.view.number + 1, members=members, is_draining=self._is_draining
            )
            outlets.view(self.view)

    def _apply(self, change: Change | None) -> None:
        """None, the constant repeat of a heartbeat or a probe, changes nothing."""
        if change is not None:
            self._say(change)
            self.refresh_soon()

    def _say(self, change: Change) -> None:
        instance = change.instance
        sizes = f"dp {instance.dp_size} tp {instance.tp_size} {instance.transfer}"
        detail = f": {change.detail}" if change.detail else ""
        log.info("%s %s %s (%s)%s", instance.role, instance.address, change.kind, sizes, detail)
        if change.warning:
            log.warning("%s: %s", instance.address, change.warning)

    # --- readings

    def find(self, address: str) -> Member | None:
        """The pool's member at an address."""
        return next((m for m in self.view.members if m.instance.address == address), None)

    def present(self) -> list[Member]:
        """Who is there, as far as known, ready or not."""
        return [m for m in self.view.members if m.state is not State.EXPIRED]

    def not_ready(self) -> str:
        """Why no request could be placed now; empty: it could."""
        if self.view.is_draining:
            return "draining"
        for role in Role:
            if not self.view.placeable(role):
                return f"no {role} instance is placeable"
        return ""

    def count_states(self) -> list[tuple[tuple[str, ...], float]]:
        counts: dict[tuple[str, ...], float] = {}
        for member in self.view.members:
            key = (member.instance.role.value, member.state.value)
            counts[key] = counts.get(key, 0) + 1
        return list(counts.items())

    def heartbeat_ages(self) -> list[tuple[tuple[str, ...], float]]:
        roles = {m.instance.address: m.instance.role.value for m in self.view.members}
        ages = self.registry.ages(monotonic())
        return [((roles[a], a), age) for a, age in ages.items() if a in roles]

    def in_flight(self) -> list[tuple[tuple[str, ...], float]]:
        return self._by_slot(self._accounting.ledger.in_flight)

    def in_flight_prompt_bytes(self) -> list[tuple[tuple[str, ...], float]]:
        return self._by_slot(self._accounting.ledger.prompt_bytes)

    def _by_slot(
        self, counts: Mapping[tuple[str, Slot], int]
    ) -> list[tuple[tuple[str, ...], float]]:
        """Every slot of the pool, those at zero too, so that a series does not vanish and
        return. A Counter: what it lacks is 0."""
        return [
            ((m.instance.role.value, slot.address, str(slot.dp_rank)), counts[role, slot])
            for m in self.view.members
            for rank in range(m.instance.dp_size)
            for role, slot in [(m.instance.role.value, Slot(m.instance.address, rank))]
        ]

    def instances(self) -> list[dict[str, object]]:
        """For `/instances`: one object an instance, by ordinal."""
        now = monotonic()
        ages = self.registry.ages(now)
        in_flight, placed = self._accounting.ledger.in_flight, self._accounting.placed
        rows: list[dict[str, object]] = []
        for member in self.view.members:
            one = member.instance
            slots = [(one.role.value, Slot(one.address, rank)) for rank in range(one.dp_size)]
            age = ages.get(one.address)
            rows.append(
                {
                    "name": member.name,
                    "address": one.address,
                    "endpoint": member.endpoint,
                    "role": one.role,
                    "state": member.state,
                    "is_placeable": member.is_placeable,
                    "is_static": one.is_static,
                    "connector": one.connector,
                    "transfer_mode": one.transfer_mode,
                    "dp_size": one.dp_size,
                    "tp_size": one.tp_size,
                    "version": f"{member.version.major}.{member.version.minor}"
                    if member.version
                    else None,
                    "models": member.models,
                    "heartbeat_age_s": None if age is None else round(age, 3),
                    "in_flight": sum(in_flight[key] for key in slots),
                    "placed": sum(placed[key] for key in slots),
                    "ranks": [
                        {
                            "dp_rank": slot.dp_rank,
                            "in_flight": in_flight[role, slot],
                            "placed": placed[role, slot],
                        }
                        for role, slot in slots
                    ],
                }
            )
        return rows
