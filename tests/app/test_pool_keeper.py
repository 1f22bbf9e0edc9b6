"""The pool's keeper: what follows from an event goes out once, endpoints before the view."""

from collections.abc import Callable
from time import monotonic

import pytest
from prometheus_client import CollectorRegistry

from sidecar.app.accounting import Accounting
from sidecar.app.pool_keeper import REST, Outlets, PoolKeeper
from sidecar.errors import HeartbeatError
from sidecar.exchange.ledger import Ledger
from sidecar.exchange.records import Placed
from sidecar.routing.instance import Connector, Instance, Role, State, TransferMode, Version
from sidecar.routing.model_card import ModelCard
from sidecar.routing.probe import ProbeOutcome, ProbeTarget
from sidecar.routing.registry import Registry
from sidecar.routing.slots import Slot
from sidecar.routing.standing import Evidence, Failure
from sidecar.routing.view import View
from sidecar.telemetry.metrics import Metrics

TTL_S, LINGER_S = 10.0, 30.0
P, D = "10.0.0.1:8000", "10.0.0.2:8000"


def instance(address: str, role: Role, **what: object) -> Instance:
    return Instance(address=address, role=role, transfer_mode=TransferMode.READ, **what)


class Kept:
    """A keeper with outlets that remember."""

    def __init__(
        self,
        static_models: dict[str, tuple[str, ...]] | None = None,
        connector: Connector = Connector.MORIIO,
    ) -> None:
        self.registry = CollectorRegistry()
        self.metrics = Metrics(self.registry, "0")
        self.accounting = Accounting(Ledger(10.0), self.metrics, 600.0)
        pool = Registry(TTL_S, linger_s=LINGER_S)
        self.keeper = PoolKeeper(
            pool, self.accounting, self.metrics, static_models or {}, connector
        )
        self.out: list[tuple[str, object]] = []
        self.acked: frozenset[str] | None = None
        self.keeper.connect(
            Outlets(
                endpoints=lambda e: self.out.append(("endpoints", e)),
                probes=lambda p: self.out.append(("probes", p)),
                view=lambda v: self.out.append(("view", v)),
                acked=lambda _now: self.acked,
            )
        )

    def last(self, kind: str) -> object:
        return [value for name, value in self.out if name == kind][-1]

    @property
    def view(self) -> View:
        view = self.last("view")
        assert isinstance(view, View)
        return view

    def generation(self, address: str) -> int:
        targets = self.last("probes")
        assert isinstance(targets, list)
        (found,) = [t for t in targets if t.address == address]
        assert isinstance(found, ProbeTarget)
        return found.generation

    def make_ready(self, address: str, role: Role, **what: object) -> None:
        self.keeper.heard(instance(address, role, **what), "")
        generation = self.generation(address)
        self.keeper.probed(address, generation, ProbeOutcome.OK)
        self.keeper.described(address, generation, Version(0, 33), (ModelCard("m"),))


def test_an_instance_is_placeable_once_probed_and_acknowledged() -> None:
    """Endpoints go out at the first heartbeat; the view says placeable only after Envoy's ACK."""
    kept = Kept()
    kept.acked = frozenset()
    kept.make_ready(P, Role.PREFILL)
    assert kept.last("endpoints") == [P]
    assert [m.is_placeable for m in kept.view.members] == [False]
    kept.acked = frozenset({P})
    kept.keeper.refresh()
    assert [m.is_placeable for m in kept.view.members] == [True]
    assert kept.view.members[0].state is State.READY


def test_endpoints_go_out_before_the_view_that_places_on_them() -> None:
    """So that their ACK is on its way."""
    kept = Kept()
    kept.out.clear()
    kept.keeper.heard(instance(P, Role.PREFILL), "")
    names = [name for name, _ in kept.out]
    assert names.index("endpoints") < names.index("view")


def test_a_constant_heartbeat_changes_nothing() -> None:
    """Every three seconds from each engine: no view, no endpoints."""
    kept = Kept()
    kept.make_ready(P, Role.PREFILL)
    before = len(kept.out)
    kept.keeper.heard(instance(P, Role.PREFILL), "")
    kept.keeper.refresh()
    assert len(kept.out) == before
    assert kept.registry.get_sample_value("pd_sidecar_heartbeats_total") == 2


def test_views_are_numbered_and_say_when_the_process_drains() -> None:
    """Each change a larger number."""
    kept = Kept()
    kept.make_ready(P, Role.PREFILL)
    number = kept.view.number
    kept.keeper.drain()
    assert kept.view.is_draining
    assert kept.view.number == number + 1
    assert kept.keeper.not_ready() == "draining"


def test_not_ready_says_which_role_is_missing() -> None:
    """Empty once both can serve."""
    kept = Kept()
    assert "prefill" in kept.keeper.not_ready()
    kept.make_ready(P, Role.PREFILL)
    assert "decode" in kept.keeper.not_ready()
    kept.make_ready(D, Role.DECODE)
    assert kept.keeper.not_ready() == ""


def test_models_of_the_configuration_win_over_what_the_instance_says() -> None:
    """Static instances may name theirs."""
    kept = Kept({P: ("named",)})
    kept.make_ready(P, Role.PREFILL)
    assert kept.view.members[0].models == ("named",)


def gauge(kept: Kept, address: str) -> float | None:
    labels = {"role": "prefill", "instance": address, "dp_rank": "0"}
    return kept.registry.get_sample_value("pd_sidecar_placements_total", labels)


def placed(exchange: str) -> Placed:
    return Placed(
        exchange=exchange,
        worker=0,
        api="completions",
        model="m",
        is_streaming=False,
        mode=None,
        prefill=Slot(P, 0),
        decode=None,
    )


@pytest.mark.parametrize("is_busy", [False, True])
def test_series_of_an_instance_vanish_when_it_and_its_last_exchange_are_gone(
    is_busy: bool,
) -> None:
    """A stream may outlive its instance's place in the pool; until then its counts stay."""
    kept = Kept()
    kept.make_ready(P, Role.PREFILL)
    kept.accounting.note(placed("e"), monotonic())
    if not is_busy:
        kept.accounting.ledger.envoy_gone(monotonic())
    start = monotonic()
    kept.keeper.sweep(start + TTL_S + 1)
    kept.keeper.sweep(start + TTL_S + LINGER_S + 5)
    kept.keeper.sweep(start + TTL_S + LINGER_S + 6)
    assert kept.view.members == ()
    assert gauge(kept, P) == (1 if is_busy else None)
    kept.accounting.ledger.envoy_gone(monotonic())
    kept.keeper.sweep(start + TTL_S + LINGER_S + 7)
    assert gauge(kept, P) is None
    assert kept.accounting.placed == {}


def test_an_instance_that_came_back_keeps_its_series() -> None:
    """The same address registered again while its old exchange ran."""
    kept = Kept()
    kept.make_ready(P, Role.PREFILL)
    kept.accounting.note(placed("e"), monotonic())
    start = monotonic()
    kept.keeper.sweep(start + TTL_S + 1)
    kept.keeper.sweep(start + TTL_S + LINGER_S + 5)
    kept.make_ready(P, Role.PREFILL)
    kept.accounting.ledger.envoy_gone(monotonic())
    kept.keeper.sweep(monotonic())
    assert gauge(kept, P) == 1


def test_readings_show_every_slot_also_those_at_zero() -> None:
    """A series that vanishes at zero and returns breaks rates and sums."""
    kept = Kept()
    kept.make_ready(P, Role.PREFILL, dp_size=2)
    kept.accounting.note(placed("e"), monotonic())
    assert kept.keeper.in_flight() == [(("prefill", P, "0"), 1), (("prefill", P, "1"), 0)]
    assert kept.keeper.count_states() == [(("prefill", "ready"), 1)]
    ((labels, age),) = kept.keeper.heartbeat_ages()
    assert labels == ("prefill", P)
    assert 0 <= age < 5
    (row,) = kept.keeper.instances()
    assert (row["name"], row["in_flight"], row["placed"]) == ("p0", 1, 1)
    assert row["version"] == "0.33"
    assert row["ranks"] == [
        {"dp_rank": 0, "in_flight": 1, "placed": 1},
        {"dp_rank": 1, "in_flight": 0, "placed": 0},
    ]


def test_rejected_frames_are_counted_by_reason() -> None:
    """The listener says why."""
    kept = Kept()
    kept.keeper.rejected("frames", "3 frames")
    value = kept.registry.get_sample_value(
        "pd_sidecar_heartbeats_rejected_total", {"reason": "frames"}
    )
    assert value == 1


def test_a_flood_of_changes_shares_refreshes() -> None:
    """While it rests from a refresh, one more serves all that change meanwhile."""
    kept = Kept()
    due: list[tuple[float, Callable[[], None]]] = []

    def slow(_: object) -> None:
        until = monotonic() + 0.02
        while monotonic() < until:
            pass

    outlets = Outlets(
        endpoints=slow,
        probes=lambda p: kept.out.append(("probes", p)),
        view=lambda v: kept.out.append(("view", v)),
        acked=lambda _now: None,
        later=lambda seconds, act: due.append((seconds, act)),
    )
    kept.keeper.connect(outlets)
    kept.keeper.heard(instance(P, Role.PREFILL), "")
    views = len(kept.out)
    for i in range(100):
        kept.keeper.heard(instance(f"10.0.1.{i}:8000", Role.DECODE), "")
    assert len(kept.out) == views
    ((seconds, act),) = due
    assert 0 < seconds <= REST * 0.1
    act()
    assert len(kept.view.members) == 101


def test_an_ejection_is_counted_once_and_handed_out(caplog: pytest.LogCaptureFixture) -> None:
    """One refused leg: the view goes out without it, one line says why, the counter has its
    reason; what fails of the same instance afterwards changes none of them."""
    kept = Kept()
    kept.make_ready(P, Role.PREFILL)
    kept.make_ready(D, Role.PREFILL)
    views = kept.view.number
    with caplog.at_level("INFO"):
        for _ in range(3):
            told = Evidence(where=P, failure=Failure.REFUSED, placed_at=monotonic())
            kept.keeper.judged(told)
    kept.keeper.refresh()
    assert kept.view.number == views + 1
    assert {m.instance.address: m.state for m in kept.view.members} == {
        P: State.EJECTED,
        D: State.READY,
    }
    assert caplog.messages == [f"prefill {P} ejected (dp 1 tp 1 READ): refused, for 5 s"]
    count = kept.registry.get_sample_value
    labels = {"instance": P, "reason": "refused"}
    assert count("pd_sidecar_instance_ejections_total", labels) == 1
    assert kept.keeper.count_states() == [(("prefill", "ejected"), 1), (("prefill", "ready"), 1)]
    assert [row["state"] for row in kept.keeper.instances()] == ["ejected", "ready"]


def test_what_serves_changes_nothing() -> None:
    """Most evidence is of requests that went well: no view, no line, no series."""
    kept = Kept()
    kept.make_ready(P, Role.PREFILL)
    before = len(kept.out)
    kept.keeper.judged(Evidence(where=P, failure=None, placed_at=monotonic()))
    kept.keeper.refresh()
    assert len(kept.out) == before


def test_who_registers_with_another_connector_stays_out_of_the_pool() -> None:
    """The refusal names the engine, both connectors and the way out; nothing is kept or counted as
    heard."""
    kept = Kept(connector=Connector.NIXL)
    before = len(kept.out)
    with pytest.raises(HeartbeatError) as caught:
        kept.keeper.heard(instance(P, Role.PREFILL), "10.0.0.1")
    assert caught.value.reason == "connector"
    for words in (f"prefill {P}", "moriio", "connector: nixl", "`instances`"):
        assert words in caught.value.detail
    assert len(kept.keeper.registry) == 0
    assert len(kept.out) == before
    assert kept.registry.get_sample_value("pd_sidecar_heartbeats_total") == 0
    kept.keeper.rejected(caught.value.reason, caught.value.detail)
    labels = {"reason": "connector"}
    name = "pd_sidecar_heartbeats_rejected_total"
    assert kept.registry.get_sample_value(name, labels) == 1


def test_instances_say_their_connector(caplog: pytest.LogCaptureFixture) -> None:
    """In `/instances` by its key, in the log in place of a mode that says nothing."""
    caplog.set_level("INFO")
    for connector, words in (
        (Connector.MORIIO, "(dp 1 tp 1 READ)"),
        (Connector.NIXL, "(dp 1 tp 1 NIXL)"),
    ):
        kept = Kept(connector=connector)
        kept.make_ready(P, Role.PREFILL, connector=connector)
        (row,) = kept.keeper.instances()
        assert (row["connector"], row["transfer_mode"]) == (connector, "READ")
        assert f"{P} joined {words}" in caplog.text
