"""The rules of readiness, expiry and identity (design §4), driven by calls with invented times."""

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from sidecar.errors import HeartbeatError
from sidecar.routing.instance import Connector, Instance, Role, State, TransferMode, Version
from sidecar.routing.model_card import ModelCard
from sidecar.routing.probe import ProbeOutcome
from sidecar.routing.record import ChangeKind, SavedPool
from sidecar.routing.registry import GRACE_S, MAX_HEARD, MAX_HEARD_RANKS, Registry

TTL_S = 12.0
OK, TIMEOUT = ProbeOutcome.OK, ProbeOutcome.TIMEOUT

CARDS = (ModelCard("m"),)


def instance(address: str = "10.0.0.1:8000", role: Role = Role.PREFILL, **what: object) -> Instance:
    return Instance(address=address, role=role, transfer_mode=TransferMode.READ, **what)


def generation(registry: Registry, address: str) -> int:
    return {t.address: t.generation for t in registry.probe_targets()}[address]


def probe(registry: Registry, address: str, *outcomes: ProbeOutcome) -> None:
    for outcome in outcomes:
        registry.probe_result(address, generation(registry, address), outcome, 0.0)


def state(registry: Registry, address: str = "10.0.0.1:8000") -> State | None:
    return {m.instance.address: m.state for m in registry.members(None)}.get(address)


def placeable(registry: Registry, acked: frozenset[str] | None = None) -> list[str]:
    return [m.instance.address for m in registry.members(acked) if m.is_placeable]


@pytest.fixture
def registry() -> Registry:
    return Registry(TTL_S)


@pytest.fixture
def ready(registry: Registry) -> Registry:
    """One ready instance, heard at 0."""
    registry.hear(instance(), 0.0)
    probe(registry, "10.0.0.1:8000", OK)
    return registry


def test_a_change_is_said_once_and_a_repeat_never(registry: Registry) -> None:
    change = registry.hear(instance(), 0.0)
    assert change is not None
    assert change.kind is ChangeKind.JOINED
    revision = registry.revision
    assert all(registry.hear(instance(), 3.0 * beat) is None for beat in range(1, 100))
    assert registry.revision == revision


def test_registered_is_not_ready_until_the_first_200(registry: Registry) -> None:
    registry.hear(instance(), 0.0)
    assert state(registry) is State.UNPROBED
    probe(registry, "10.0.0.1:8000", TIMEOUT)
    assert placeable(registry) == []
    probe(registry, "10.0.0.1:8000", OK)
    assert placeable(registry) == ["10.0.0.1:8000"]


@pytest.mark.parametrize(
    "outcome", [ProbeOutcome.REFUSED, ProbeOutcome.NO_ANSWER, ProbeOutcome.BAD_STATUS]
)
def test_refused_or_not_200_is_out_at_once(ready: Registry, outcome: ProbeOutcome) -> None:
    probe(ready, "10.0.0.1:8000", outcome)
    assert state(ready) is State.UNHEALTHY
    probe(ready, "10.0.0.1:8000", OK)
    assert state(ready) is State.READY


def test_only_the_third_timeout_in_a_row_is_out(ready: Registry) -> None:
    probe(ready, "10.0.0.1:8000", TIMEOUT, TIMEOUT, OK, TIMEOUT, TIMEOUT)
    assert state(ready) is State.READY
    probe(ready, "10.0.0.1:8000", TIMEOUT)
    assert state(ready) is State.UNHEALTHY


def test_a_probe_of_the_record_before_does_not_make_the_new_one_ready(ready: Registry) -> None:
    old = generation(ready, "10.0.0.1:8000")
    change = ready.hear(instance(dp_size=8), 1.0)
    assert change is not None
    assert change.kind is ChangeKind.CHANGED
    assert ready.probe_result("10.0.0.1:8000", old, OK, 1.0) is None
    assert ready.describe("10.0.0.1:8000", old, Version(0, 33), CARDS) is None
    assert state(ready) is State.UNPROBED
    assert ready.endpoints() == ["10.0.0.1:8000"]


def test_the_same_address_under_the_other_role_moves(ready: Registry) -> None:
    change = ready.hear(instance(role=Role.DECODE), 1.0)
    assert change is not None
    assert change.kind is ChangeKind.MOVED_ROLE
    (member,) = ready.members(None)
    assert member.instance.role is Role.DECODE
    assert member.ordinal == 0


def test_silence_expires_and_the_record_goes_when_it_is_not_busy(ready: Registry) -> None:
    assert ready.sweep(TTL_S, ()) == []
    (expired,) = ready.sweep(TTL_S + 0.1, {"10.0.0.1:8000"})
    assert expired.kind is ChangeKind.EXPIRED
    assert placeable(ready) == []
    assert ready.probe_targets() == []
    ready.sweep(TTL_S + 60, {"10.0.0.1:8000"})
    assert ready.endpoints() == ["10.0.0.1:8000"]
    (removed,) = ready.sweep(TTL_S + 61, ())
    assert removed.kind is ChangeKind.REMOVED
    assert ready.endpoints() == []


def test_a_worker_that_placed_just_before_the_expiry_still_finds_the_endpoint(
    ready: Registry,
) -> None:
    ready.sweep(TTL_S + 1, ())
    ready.sweep(TTL_S + 1 + GRACE_S / 2, ())
    assert ready.endpoints() == ["10.0.0.1:8000"]
    ready.sweep(TTL_S + 1 + GRACE_S, ())
    assert ready.endpoints() == []


def test_a_busy_record_goes_when_the_drain_limit_passed(ready: Registry) -> None:
    ready.sweep(TTL_S + 1, ())
    ready.sweep(TTL_S + 1 + 119, {"10.0.0.1:8000"})
    assert len(ready) == 1
    ready.sweep(TTL_S + 1 + 120, {"10.0.0.1:8000"})
    assert len(ready) == 0


def test_a_returning_instance_keeps_its_ordinal_and_must_be_probed_again(ready: Registry) -> None:
    ready.hear(instance("10.0.0.2:8000"), 0.0)
    ready.sweep(TTL_S + 1, ())
    change = ready.hear(instance(), TTL_S + 2)
    assert change is not None
    assert change.kind is ChangeKind.RETURNED
    assert state(ready) is State.UNPROBED
    ready.sweep(100.0, ())
    ready.sweep(110.0, ())
    assert len(ready) == 0
    change = ready.hear(instance("10.0.0.2:8000"), 120.0)
    assert change is not None
    assert change.kind is ChangeKind.RETURNED
    assert ready.members(None)[0].ordinal == 1
    ready.hear(instance("10.0.0.3:8000"), 120.0)
    assert ready.members(None)[1].ordinal == 2


def test_placement_waits_for_the_ack_of_every_envoy(ready: Registry) -> None:
    assert placeable(ready, frozenset()) == []
    assert placeable(ready, frozenset({"10.0.0.1:8000"})) == ["10.0.0.1:8000"]
    assert placeable(ready, None) == ["10.0.0.1:8000"]


def test_a_name_is_not_in_the_list_until_it_is_resolved(registry: Registry) -> None:
    registry.hear(instance("engine-1:8000"), 0.0)
    probe(registry, "engine-1:8000", OK)
    assert registry.endpoints() == []
    assert placeable(registry) == []
    registry.resolved("engine-1:8000", generation(registry, "engine-1:8000"), "10.0.0.9:8000")
    assert registry.endpoints() == ["10.0.0.9:8000"]
    assert placeable(registry, frozenset({"10.0.0.9:8000"})) == ["engine-1:8000"]


def test_an_engine_known_by_name_and_by_address_is_one_endpoint_and_one_share(
    registry: Registry,
) -> None:
    registry.hear(instance("10.0.0.9:8000"), 0.0)
    registry.add_static(instance("engine-1:8000"), 0.0)
    registry.resolved("engine-1:8000", generation(registry, "engine-1:8000"), "10.0.0.9:8000")
    probe(registry, "engine-1:8000", OK)
    probe(registry, "10.0.0.9:8000", OK)
    assert registry.endpoints() == ["10.0.0.9:8000"]
    assert placeable(registry) == ["engine-1:8000"]


def test_a_static_instance_needs_no_heartbeat_and_wins_over_them(registry: Registry) -> None:
    registry.add_static(instance(tp_size=8), 0.0)
    probe(registry, "10.0.0.1:8000", OK)
    assert registry.sweep(1e6, ()) == []
    assert placeable(registry) == ["10.0.0.1:8000"]
    assert registry.hear(instance(tp_size=8), 1.0) is None
    conflict = registry.hear(instance(tp_size=4), 2.0)
    assert conflict is not None
    assert conflict.kind is ChangeKind.CONFLICT
    assert registry.hear(instance(tp_size=4), 3.0) is None
    assert registry.members(None)[0].instance.tp_size == 8
    assert state(registry) is State.READY


def test_a_leaving_instance_that_still_pings_stays_out_and_known(ready: Registry) -> None:
    assert ready.leave("10.0.0.1:8000", 1.0) is not None
    assert ready.leave("10.0.0.1:8000", 1.0) is None
    for second in range(2, 200):
        ready.hear(instance(), float(second))
        ready.sweep(float(second), ())
    assert state(ready) is State.LEAVING
    assert ready.endpoints() == ["10.0.0.1:8000"]
    ready.rejoin("10.0.0.1:8000")
    assert state(ready) is State.READY
    assert ready.sweep(205.0, ()) == []


def test_a_leaving_instance_that_fell_silent_is_gone_and_may_come_back(ready: Registry) -> None:
    ready.leave("10.0.0.1:8000", 1.0)
    kinds = [change.kind for change in ready.sweep(TTL_S + 1, ())]
    assert kinds == [ChangeKind.EXPIRED, ChangeKind.REMOVED]
    ready.hear(instance(), 30.0)
    probe(ready, "10.0.0.1:8000", OK)
    assert state(ready) is State.READY


def test_a_static_instance_that_leaves_goes_when_it_is_not_busy(registry: Registry) -> None:
    registry.add_static(instance(), 0.0)
    registry.leave("10.0.0.1:8000", 1.0)
    registry.sweep(10.0, {"10.0.0.1:8000"})
    assert len(registry) == 1
    registry.sweep(11.0, ())
    assert len(registry) == 0


def test_a_flood_of_addresses_is_bounded_and_the_known_are_still_heard(registry: Registry) -> None:
    for i in range(MAX_HEARD):
        registry.hear(instance(f"10.0.{i // 250}.{i % 250}:8000"), 0.0)
    with pytest.raises(HeartbeatError) as caught:
        registry.hear(instance("10.9.9.9:8000"), 1.0)
    assert caught.value.reason == "full"
    assert registry.hear(instance("10.0.0.0:8000"), 1.0) is None
    registry.add_static(instance("10.9.9.9:8000"), 1.0)
    assert len(registry) == MAX_HEARD + 1


def test_ranks_of_all_instances_together_are_bounded(registry: Registry) -> None:
    """Absurd sizes must not become a slot and a series each; who is there already stays."""
    fitting = MAX_HEARD_RANKS // 4096
    for i in range(fitting):
        registry.hear(instance(f"10.0.1.{i}:8000", dp_size=4096), 0.0)
    for late in (instance("10.0.2.1:8000"), instance("10.0.2.1:8000", dp_size=4096)):
        with pytest.raises(HeartbeatError) as caught:
            registry.hear(late, 0.0)
        assert caught.value.reason == "full"
    registry.hear(instance("10.0.1.0:8000", dp_size=4095), 1.0)
    registry.hear(instance("10.0.2.1:8000"), 1.0)
    with pytest.raises(HeartbeatError):
        registry.hear(instance("10.0.1.0:8000", dp_size=4096), 1.0)
    assert len(registry) == fitting + 1


def test_ranks_and_tp_together_are_warned_about(registry: Registry) -> None:
    change = registry.hear(instance(dp_size=8, tp_size=2), 0.0)
    assert change is not None
    assert "collide" in change.warning
    assert not registry.hear(instance("10.0.0.2:8000", dp_size=8), 0.0).warning


def test_ranks_and_tp_together_are_fine_with_nixl(registry: Registry) -> None:
    both = instance(dp_size=8, tp_size=2, connector=Connector.NIXL)
    assert not registry.add_static(both, 0.0).warning


def test_describe_is_seen_by_members_and_said_once(ready: Registry) -> None:
    life = generation(ready, "10.0.0.1:8000")
    assert ready.describe("10.0.0.1:8000", life, Version(0, 33), CARDS) is not None
    assert ready.describe("10.0.0.1:8000", life, Version(0, 33), CARDS) is None
    (member,) = ready.members(None)
    assert (member.version, member.models) == (Version(0, 33), ("m",))


def described(registry: Registry, version: Version, *models: str) -> None:
    cards = tuple(ModelCard(name) for name in models)
    registry.describe("10.0.0.1:8000", generation(registry, "10.0.0.1:8000"), version, cards)


def test_what_was_refused_is_another_engine_when_it_answers(ready: Registry) -> None:
    """Its version is forgotten and it is watched anew; its models are known until it says others,
    or a pool of two models would give its requests to engines of the other."""
    described(ready, Version(0, 33), "m")
    old = generation(ready, "10.0.0.1:8000")
    change = ready.probe_result("10.0.0.1:8000", old, ProbeOutcome.REFUSED, 5.0)
    assert change is not None
    assert (change.kind, change.detail) == (ChangeKind.UNHEALTHY, "probe: refused")
    (member,) = ready.members(None)
    assert (member.version, member.models, member.alive_since) == (None, ("m",), 5.0)
    assert generation(ready, "10.0.0.1:8000") != old
    assert ready.probe_result("10.0.0.1:8000", old, OK, 6.0) is None
    assert ready.describe("10.0.0.1:8000", old, Version(0, 33), CARDS) is None
    ready.describe("10.0.0.1:8000", generation(ready, "10.0.0.1:8000"), None, ())
    probe(ready, "10.0.0.1:8000", OK)
    (member,) = ready.members(None)
    assert (member.state, member.version, member.models) == (State.READY, None, ())


def test_while_it_refuses_it_stays_one_engine(ready: Registry) -> None:
    """Of a row of refusals the first alone says that something went, whatever comes between them:
    no watch begins anew, and nothing is said."""
    probe(ready, "10.0.0.1:8000", ProbeOutcome.REFUSED)
    life, revision = generation(ready, "10.0.0.1:8000"), ready.revision
    for at, outcome in enumerate((ProbeOutcome.REFUSED, ProbeOutcome.NO_ANSWER, TIMEOUT) * 5):
        assert ready.probe_result("10.0.0.1:8000", life, outcome, 10.0 + at) is None
    assert (generation(ready, "10.0.0.1:8000"), ready.revision) == (life, revision)
    assert ready.members(None)[0].alive_since == 0.0
    assert ready.probe_result("10.0.0.1:8000", life, OK, 30.0) is not None
    assert ready.probe_result("10.0.0.1:8000", life, ProbeOutcome.REFUSED, 31.0) is not None
    assert ready.members(None)[0].alive_since == 31.0


def test_a_refusal_of_one_that_is_out_already_is_said(ready: Registry) -> None:
    """Its /health was bad, now its process is gone: who follows the pool hears of it."""
    probe(ready, "10.0.0.1:8000", ProbeOutcome.BAD_STATUS)
    life = generation(ready, "10.0.0.1:8000")
    change = ready.probe_result("10.0.0.1:8000", life, ProbeOutcome.REFUSED, 1.0)
    assert change is not None
    assert change.kind is ChangeKind.UNHEALTHY


def test_one_that_does_not_listen_yet_is_watched_once(registry: Registry) -> None:
    """Nothing is known of it, so there is nothing to begin anew; what was placed there by a sidecar
    that ran before is lost all the same."""
    registry.hear(instance(), 0.0)
    life = generation(registry, "10.0.0.1:8000")
    registry.probe_result("10.0.0.1:8000", life, ProbeOutcome.REFUSED, 1.0)
    assert generation(registry, "10.0.0.1:8000") == life
    assert registry.members(None)[0].alive_since == 1.0


@pytest.mark.parametrize("outcome", [ProbeOutcome.NO_ANSWER, ProbeOutcome.BAD_STATUS, TIMEOUT])
def test_only_a_refusal_proves_that_a_process_is_gone(
    ready: Registry, outcome: ProbeOutcome
) -> None:
    """No route, a connection that was closed, another status: the engine may live and push."""
    described(ready, Version(0, 33), "m")
    before = generation(ready, "10.0.0.1:8000")
    for at in range(1, 5):
        ready.probe_result("10.0.0.1:8000", before, outcome, float(at))
    (member,) = ready.members(None)
    assert member.state is State.UNHEALTHY
    assert (member.alive_since, member.version) == (0.0, Version(0, 33))
    assert generation(ready, "10.0.0.1:8000") == before


def test_a_new_life_is_alive_since_it_began(ready: Registry) -> None:
    """Another registration, or its return after silence; a repeat of the same is none."""
    ready.hear(instance(), 3.0)
    assert ready.members(None)[0].alive_since == 0.0
    ready.hear(instance(dp_size=2), 4.0)
    assert ready.members(None)[0].alive_since == 4.0
    ready.sweep(5.0 + TTL_S, {"10.0.0.1:8000"})
    ready.hear(instance(dp_size=2), 20.0)
    assert ready.members(None)[0].alive_since == 20.0


def test_a_new_life_may_go_as_well(ready: Registry) -> None:
    """Gone, registered anew, and gone again before it was well: the last is what counts."""
    probe(ready, "10.0.0.1:8000", ProbeOutcome.REFUSED)
    ready.hear(instance(dp_size=2), 4.0)
    life = generation(ready, "10.0.0.1:8000")
    ready.probe_result("10.0.0.1:8000", life, ProbeOutcome.REFUSED, 5.0)
    assert ready.members(None)[0].alive_since == 5.0


@pytest.mark.parametrize(("now", "alive_since"), [(50.0, 7.0), (6.0, 5.0)])
def test_a_restart_of_ours_is_no_new_life_of_an_engine(
    ready: Registry, now: float, alive_since: float
) -> None:
    """Its age goes over the file. A moment in the future is of before a reboot, which ended all:
    then it is alive since it was heard."""
    life = generation(ready, "10.0.0.1:8000")
    ready.probe_result("10.0.0.1:8000", life, ProbeOutcome.REFUSED, 7.0)
    ready.hear(instance(), 7.5)
    encoded = msgspec.json.encode(ready.to_file(now=8.0, wall_now=1_000.0))
    later = Registry(TTL_S)
    later.from_file(msgspec.json.decode(encoded, type=SavedPool), now=now, wall_now=1_000.5)
    assert later.members(None)[0].alive_since == alive_since


def test_a_restart_keeps_ordinals_ages_and_who_was_leaving(ready: Registry) -> None:
    ready.hear(instance("10.0.0.2:8000", Role.DECODE), 5.0)
    ready.hear(instance("10.0.0.3:8000"), -20.0)
    ready.add_static(instance("10.0.0.4:8000"), 5.0)
    ready.leave("10.0.0.2:8000", 6.0)
    encoded = msgspec.json.encode(ready.to_file(now=8.0, wall_now=1_000.0))
    saved = msgspec.json.decode(encoded, type=SavedPool)

    later = Registry(TTL_S)
    changes = later.from_file(saved, now=500.0, wall_now=1_002.0)
    assert {change.kind for change in changes} == {ChangeKind.RETURNED}
    assert later.ages(500.0) == {"10.0.0.1:8000": 10.0, "10.0.0.2:8000": 5.0}
    assert state(later) is State.UNPROBED
    assert state(later, "10.0.0.2:8000") is State.LEAVING
    later.add_static(instance("10.0.0.4:8000"), 500.0)
    later.hear(instance("10.0.0.3:8000"), 500.0)
    later.hear(instance("10.0.0.5:8000"), 500.0)
    ordinals = {m.instance.address: m.ordinal for m in later.members(None)}
    assert ordinals == {f"10.0.0.{i + 1}:8000": i for i in range(5)}
    later.sweep(500.0 + TTL_S - 9, ())
    assert state(later) is State.EXPIRED


def test_a_wall_clock_that_was_set_back_makes_no_record_younger_than_now(ready: Registry) -> None:
    saved = ready.to_file(now=1.0, wall_now=1_000.0)
    later = Registry(TTL_S)
    later.from_file(saved, now=50.0, wall_now=10.0)
    assert later.ages(50.0) == {"10.0.0.1:8000": 0.0}


def test_the_print_shows_counts(ready: Registry) -> None:
    assert repr(ready) == "Registry(prefill ready: 1; next ordinal 1)"


ADDRESSES = st.sampled_from([f"10.0.0.{i}:8000" for i in range(4)])


class Lives(RuleBasedStateMachine):
    """Any order of events: what is placeable answered its last probe in this life, and no ordinal
    is ever held by two addresses."""

    def __init__(self) -> None:
        super().__init__()
        self.registry = Registry(TTL_S)
        self.now = 0.0
        self.owner: dict[int, str] = {}
        self.last_ok: dict[tuple[str, int], bool] = {}

    @rule(address=ADDRESSES, role=st.sampled_from(Role), dp_size=st.integers(1, 2))
    def hear(self, address: str, role: Role, dp_size: int) -> None:
        self.registry.hear(instance(address, role, dp_size=dp_size), self.now)

    @rule(address=ADDRESSES)
    def add_static(self, address: str) -> None:
        self.registry.add_static(instance(address), self.now)

    @rule(address=ADDRESSES, back=st.integers(0, 2), outcome=st.sampled_from(ProbeOutcome))
    def probe(self, address: str, back: int, outcome: ProbeOutcome) -> None:
        for target in self.registry.probe_targets():
            if target.address == address:
                self.registry.probe_result(address, target.generation - back, outcome, self.now)
                if back == 0 and outcome is not TIMEOUT:
                    self.last_ok[address, target.generation] = outcome is OK

    @rule(address=ADDRESSES)
    def leave(self, address: str) -> None:
        self.registry.leave(address, self.now)

    @rule(address=ADDRESSES)
    def rejoin(self, address: str) -> None:
        self.registry.rejoin(address)

    @rule(seconds=st.floats(0.1, 20), busy=st.sets(ADDRESSES))
    def wait(self, seconds: float, busy: set[str]) -> None:
        self.now += seconds
        self.registry.sweep(self.now, busy)

    @rule(seconds=st.floats(0, 20))
    def restart(self, seconds: float) -> None:
        saved = self.registry.to_file(self.now, self.now)
        self.now += seconds
        self.registry = Registry(TTL_S)
        self.registry.from_file(saved, self.now, self.now)
        self.last_ok.clear()

    @invariant()
    def holds(self) -> None:
        lives = {t.address: t.generation for t in self.registry.probe_targets()}
        for member in self.registry.members(None):
            address = member.instance.address
            assert self.owner.setdefault(member.ordinal, address) == address
            if member.is_placeable:
                assert self.last_ok[address, lives[address]]
        assert set(placeable(self.registry)) <= set(self.registry.endpoints())


Lives.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestLives = Lives.TestCase
