"""Ejection and recovery (design §4), driven by calls with invented times."""

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sidecar.routing.instance import Instance, Role, State, TransferMode
from sidecar.routing.probe import ProbeOutcome
from sidecar.routing.record import Change, ChangeKind
from sidecar.routing.registry import Registry
from sidecar.routing.standing import EjectionRule, Evidence, Failure

RULE = EjectionRule(failures=3, backoff_s=5.0, backoff_max_s=12.0)
TTL_S = 1e9
REFUSED, RESET = Failure.REFUSED, Failure.RESET
COUNTED = sorted(set(Failure) - {REFUSED})


def address_of(index: int, role: Role = Role.PREFILL) -> str:
    return f"10.0.{0 if role is Role.PREFILL else 1}.{index}:8000"


class Pool:
    """A registry with its clock; instances are heard and probed at 0."""

    def __init__(self, prefill: int, decode: int = 0, rule: EjectionRule = RULE) -> None:
        self.registry = Registry(TTL_S, ejection_rule=rule)
        self.now = 0.0
        for role, count in ((Role.PREFILL, prefill), (Role.DECODE, decode)):
            for index in range(count):
                self.hear(index, role)
                self.probe(address_of(index, role))

    def hear(self, index: int, role: Role = Role.PREFILL, dp_size: int = 1) -> Change | None:
        one = Instance(
            address=address_of(index, role),
            role=role,
            transfer_mode=TransferMode.READ,
            dp_size=dp_size,
        )
        return self.registry.hear(one, self.now)

    def probe(self, address: str, outcome: ProbeOutcome = ProbeOutcome.OK) -> Change | None:
        lives = {t.address: t.generation for t in self.registry.probe_targets()}
        return self.registry.probe_result(address, lives[address], outcome, self.now)

    def say(
        self, address: str, failure: Failure | None, times: int = 1, placed_at: float | None = None
    ) -> list[Change]:
        """So many legs that ended so, placed now; returns what came of it."""
        at = self.now if placed_at is None else placed_at
        told = Evidence(where=address, failure=failure, placed_at=at)
        changes = [self.registry.judge(told, self.now) for _ in range(times)]
        return [change for change in changes if change is not None]

    def state(self, address: str) -> State:
        return {m.instance.address: m.state for m in self.registry.members(None)}[address]

    def in_state(self, state: State, role: Role | None = None) -> list[str]:
        return [
            member.instance.address
            for member in self.registry.members(None)
            if member.state is state and role in (None, member.instance.role)
        ]

    def placeable(self) -> list[str]:
        return [m.instance.address for m in self.registry.members(None) if m.is_placeable]


P0, P1, P2, P3 = (address_of(i) for i in range(4))


def test_a_refused_connection_ejects_at_once_and_is_said_once() -> None:
    """One is enough, the change says why and for how long, and the next ones change nothing."""
    pool = Pool(2)
    (change,) = pool.say(P0, REFUSED, times=5)
    assert (change.kind, change.instance.address) == (ChangeKind.EJECTED, P0)
    assert change.detail == "refused, for 5 s"
    assert pool.state(P0) is State.EJECTED
    assert pool.placeable() == [P1]


def test_an_ejected_instance_stays_known_to_envoy_and_probed() -> None:
    """Running requests need its endpoint, and probes bring it back."""
    pool = Pool(2)
    pool.say(P0, REFUSED)
    assert pool.registry.endpoints() == [P0, P1]
    assert {target.address for target in pool.registry.probe_targets()} == {P0, P1}


def test_refused_connections_may_empty_a_pool() -> None:
    """Who does not listen serves nobody: there is no limit."""
    pool = Pool(3)
    for address in (P0, P1, P2):
        pool.say(address, REFUSED)
    assert pool.placeable() == []


@pytest.mark.parametrize("failure", COUNTED)
def test_other_failures_eject_at_the_third_in_a_row(failure: Failure) -> None:
    """Of any of their kinds, and a served request between them starts the count anew."""
    pool = Pool(2)
    assert not pool.say(P0, failure, 2)
    pool.say(P0, None)
    assert not pool.say(P0, failure, 2)
    (change,) = pool.say(P0, failure)
    assert change.detail.startswith(failure)
    assert pool.state(P0) is State.EJECTED


def test_the_failures_of_one_instance_are_not_those_of_another() -> None:
    """Each has its own count."""
    pool = Pool(4)
    for address in (P0, P1, P2, P3):
        assert not pool.say(address, RESET, 2)
    assert len(pool.say(P1, RESET)) == 1


@pytest.mark.parametrize("count", range(1, 8))
def test_at_most_half_of_a_role_is_out_for_counted_failures(count: int) -> None:
    """floor(n/2) of n, and the others go on serving; another role's are not counted."""
    pool = Pool(count, decode=4)
    for _ in range(3):
        for index in range(count):
            pool.say(address_of(index), RESET)
    assert len(pool.in_state(State.EJECTED, Role.PREFILL)) == count // 2
    assert len(pool.in_state(State.READY, Role.DECODE)) == 4


def test_counted_failures_never_take_the_last_ready_one() -> None:
    """The other has refused: a pool that resets some requests is better than none."""
    pool = Pool(2)
    pool.say(P0, REFUSED)
    assert not pool.say(P1, RESET, 20)
    assert pool.placeable() == [P1]


def test_what_the_limit_spared_is_ejected_when_there_is_room_again() -> None:
    """Its count stands, so its next failure is enough."""
    pool = Pool(2)
    pool.say(P0, RESET, 3)
    pool.say(P1, RESET, 3)
    pool.now = 6.0
    pool.probe(P0)
    assert len(pool.say(P1, RESET)) == 1


def test_only_a_good_probe_after_the_backoff_brings_it_back() -> None:
    """Good ones before do not, bad ones after do not, time alone does not."""
    pool = Pool(2)
    pool.say(P0, REFUSED)
    pool.now = 4.9
    assert pool.probe(P0) is None
    assert pool.state(P0) is State.EJECTED
    pool.now = 5.0
    pool.registry.sweep(pool.now, ())
    assert pool.state(P0) is State.EJECTED
    pool.probe(P0, ProbeOutcome.TIMEOUT)
    assert pool.state(P0) is State.EJECTED
    change = pool.probe(P0)
    assert change is not None
    assert change.kind is ChangeKind.RECOVERED
    assert pool.placeable() == [P0, P1]
    assert pool.probe(P0) is None


def test_bad_probes_show_as_unhealthy_and_both_must_pass() -> None:
    """`ejected` always means a good /health; good again within the back-off it is still out."""
    pool = Pool(2)
    pool.say(P0, REFUSED)
    pool.now = 1.0
    pool.probe(P0, ProbeOutcome.REFUSED)
    assert pool.state(P0) is State.UNHEALTHY
    pool.now = 2.0
    change = pool.probe(P0)
    assert change is not None
    assert (change.kind, change.detail) == (
        ChangeKind.READY,
        "probe: ok; still ejected for 3.0 s",
    )
    assert pool.state(P0) is State.EJECTED
    pool.now = 6.0
    pool.probe(P0)
    assert pool.state(P0) is State.READY


def back(pool: Pool, address: str) -> float:
    """Wait, probing every 0.5 s, until it is back; returns the seconds."""
    began = pool.now
    while pool.state(address) is not State.READY:
        pool.now += 0.5
        pool.probe(address)
    return pool.now - began


def test_the_backoff_doubles_to_its_limit_until_the_instance_served() -> None:
    """5, 10, 12, 12; then a request that it served makes it 5 again."""
    pool = Pool(2)
    waits = []
    for _ in range(4):
        pool.say(P0, REFUSED)
        waits.append(back(pool, P0))
    assert waits == [5.0, 10.0, 12.0, 12.0]
    pool.say(P0, None)
    pool.say(P0, REFUSED)
    assert back(pool, P0) == 5.0


def test_the_backoff_of_ever_more_ejections_stays_at_its_limit() -> None:
    """A thousand in a row overflow nothing."""
    pool = Pool(2)
    for _ in range(2000):
        pool.say(P0, REFUSED)
        pool.now += 12.0
        pool.probe(P0)
    pool.say(P0, REFUSED)
    assert back(pool, P0) == 12.0


def test_requests_placed_before_it_came_back_are_old_news() -> None:
    """A hundred that hung at a stopped engine all fail when it runs again: it stays; and what it
    served of them does not shorten its next back-off."""
    pool = Pool(2)
    pool.now = 1.0
    pool.say(P0, Failure.TIMEOUT, 3)
    pool.now = 10.0
    pool.probe(P0)
    pool.now = 11.0
    assert not pool.say(P0, Failure.TIMEOUT, 100, placed_at=2.0)
    assert not pool.say(P0, REFUSED, 1, placed_at=9.9)
    pool.say(P0, None, placed_at=2.0)
    assert pool.state(P0) is State.READY
    pool.say(P0, REFUSED, placed_at=10.0)
    assert back(pool, P0) == 10.0


@pytest.mark.parametrize("away", ["ejected", "unhealthy"])
def test_who_comes_back_starts_at_zero(away: str) -> None:
    """Its failures before it went are forgotten: two more are not three."""
    pool = Pool(2)
    pool.say(P0, RESET, 3 if away == "ejected" else 2)
    pool.now = 10.0
    if away == "unhealthy":
        pool.probe(P0, ProbeOutcome.BAD_STATUS)
    pool.probe(P0)
    assert pool.state(P0) is State.READY
    assert not pool.say(P0, RESET, 2)
    assert pool.say(P0, RESET)


def test_the_same_holds_after_it_was_unhealthy() -> None:
    """Stopped, the probes took it out before its requests failed."""
    pool = Pool(2)
    pool.now = 10.0
    for _ in range(3):
        pool.probe(P0, ProbeOutcome.TIMEOUT)
    assert not pool.say(P0, Failure.TIMEOUT, 50, placed_at=1.0)
    assert pool.state(P0) is State.UNHEALTHY
    pool.now = 20.0
    pool.probe(P0)
    assert not pool.say(P0, Failure.TIMEOUT, 50, placed_at=9.0)
    assert pool.state(P0) is State.READY


def test_what_we_slept_through_says_nothing() -> None:
    """A paused container: every request in it ran out of time, and no engine is to blame. The count
    of what failed after that begins where it was."""
    pool = Pool(2)
    pool.say(P0, RESET, 2)
    pool.now = 60.0
    pool.registry.stood_still(pool.now)
    assert not pool.say(P0, Failure.TIMEOUT, 50, placed_at=59.0)
    assert not pool.say(P1, REFUSED, placed_at=59.0)
    assert pool.placeable() == [P0, P1]
    assert pool.say(P0, RESET, placed_at=60.0)


@pytest.mark.parametrize(
    "renew",
    [
        lambda pool: pool.hear(0, dp_size=2),
        lambda pool: (
            setattr(pool, "now", 2 * TTL_S),
            pool.registry.sweep(pool.now, [P0]),
            pool.hear(0),
        ),
    ],
    ids=["changed", "expired and back"],
)
def test_a_new_life_knows_nothing_of_it(renew: Callable[[Pool], object]) -> None:
    """Another registration, or its return: the first good probe is enough, the back-off short."""
    pool = Pool(2)
    for _ in range(2):
        pool.say(P0, REFUSED)
        pool.now += 10.0
        pool.probe(P0)
    pool.say(P0, REFUSED)
    renew(pool)
    pool.probe(P0)
    assert pool.state(P0) is State.READY
    pool.say(P0, REFUSED)
    assert back(pool, P0) == 5.0


def test_a_process_that_was_seen_to_go_does_not_end_the_back_off() -> None:
    """Its version is forgotten, how it stands is not: a crash loop would be ready each time."""
    pool = Pool(2)
    pool.say(P0, REFUSED)
    for pool.now in (1.0, 2.0, 3.0):
        pool.probe(P0, ProbeOutcome.REFUSED)
        pool.probe(P0)
        assert pool.state(P0) is State.EJECTED
    assert back(pool, P0) == 2.0
    pool.say(P0, REFUSED)
    assert back(pool, P0) == 10.0


def test_leaving_and_expired_come_first() -> None:
    """Of what keeps an instance out, the operator's word and silence are shown."""
    pool = Pool(3)
    pool.say(P0, REFUSED)
    pool.registry.leave(P0, 1.0)
    assert pool.state(P0) is State.LEAVING
    pool.registry.rejoin(P0)
    assert pool.state(P0) is State.EJECTED
    pool.registry.sweep(2 * TTL_S, [P0])
    assert pool.state(P0) is State.EXPIRED


def test_half_is_counted_anew_when_others_go() -> None:
    """Two of four are out; of the two others one leaves: the one that is out for longest returns
    before its time, and its record says why."""
    pool = Pool(4)
    pool.say(P0, RESET, 3)
    pool.now = 1.0
    pool.say(P1, RESET, 3)
    assert pool.registry.sweep(pool.now, ()) == []
    pool.registry.leave(P3, pool.now)
    (change,) = pool.registry.sweep(pool.now, ())
    assert (change.kind, change.instance.address) == (ChangeKind.RECOVERED, P0)
    assert change.detail == "too few others are left"
    assert pool.placeable() == [P0, P2]


def test_one_comes_back_when_no_other_is_ready() -> None:
    """The others refused, or are unhealthy: what resets some requests is better than nothing."""
    pool = Pool(3)
    pool.say(P0, RESET, 3)
    pool.say(P1, REFUSED)
    pool.probe(P2, ProbeOutcome.BAD_STATUS)
    assert pool.placeable() == []
    pool.registry.sweep(pool.now, ())
    assert pool.placeable() == [P0]


def test_evidence_by_endpoint_reaches_a_named_instance() -> None:
    """Envoy knows addresses alone; of two records with one endpoint the placed one is judged."""
    registry = Registry(TTL_S, ejection_rule=RULE)
    for host in ("engine", "10.0.0.9"):
        one = Instance(address=f"{host}:8000", role=Role.DECODE, transfer_mode=TransferMode.READ)
        registry.hear(one, 0.0)
    (named, literal) = registry.probe_targets()
    registry.resolved("engine:8000", named.generation, "10.0.0.9:8000")
    for target in (named, literal):
        registry.probe_result(target.address, target.generation, ProbeOutcome.OK, 0.0)
    assert _refused_at(registry, "10.0.0.9:8000") == "engine:8000"
    assert [m for m in registry.members(None) if m.is_placeable] == []


def test_evidence_follows_a_name_to_its_new_endpoint() -> None:
    """Resolved elsewhere, the name is judged by what happens there, and no more by the old one."""
    registry = Registry(TTL_S, ejection_rule=RULE)
    registry.hear(
        Instance(address="engine:8000", role=Role.DECODE, transfer_mode=TransferMode.READ), 0.0
    )
    (target,) = registry.probe_targets()
    registry.probe_result(target.address, target.generation, ProbeOutcome.OK, 0.0)
    registry.resolved(target.address, target.generation, "10.0.0.8:8000")
    assert _refused_at(registry, "10.0.0.9:8000") is None
    registry.resolved(target.address, target.generation, "10.0.0.9:8000")
    assert _refused_at(registry, "10.0.0.8:8000") is None
    assert _refused_at(registry, "10.0.0.9:8000") == "engine:8000"


def _refused_at(registry: Registry, endpoint: str) -> str | None:
    told = Evidence(where=endpoint, failure=REFUSED, placed_at=1.0)
    change = registry.judge(told, 1.0)
    return None if change is None else change.instance.address


def test_evidence_of_an_unknown_instance_is_nothing() -> None:
    """It was removed meanwhile."""
    assert Pool(1).say("10.9.9.9:1", REFUSED) == []


INDEXES = st.integers(0, 4)
ROLES = st.sampled_from(Role)


class Storm(RuleBasedStateMachine):
    """Whatever happens: at most half of a role is out for counted failures, none of them the last
    ready one; nobody ejected is placeable; and with good probes and time all come back."""

    @initialize(prefill=st.integers(1, 5), decode=st.integers(1, 5))
    def start(self, prefill: int, decode: int) -> None:
        self.pool = Pool(prefill, decode)
        self.counted: set[str] = set()
        """ejected for counted failures and not back"""

    def take(self, changes: list[Change | None]) -> None:
        for change in changes:
            if change is None:
                continue
            if change.kind is ChangeKind.EJECTED and not change.detail.startswith(REFUSED):
                self.counted.add(change.instance.address)
            elif change.kind is not ChangeKind.UNHEALTHY and change.kind is not ChangeKind.READY:
                self.counted.discard(change.instance.address)

    def known(self, index: int, role: Role) -> str | None:
        address = address_of(index, role)
        targets = {target.address for target in self.pool.registry.probe_targets()}
        return address if address in targets else None

    @rule(
        index=INDEXES,
        role=ROLES,
        failure=st.sampled_from([*Failure, None]),
        times=st.integers(1, 4),
        age_s=st.sampled_from([0.0, 1.0, 60.0]),
    )
    def end_legs(
        self, index: int, role: Role, failure: Failure | None, times: int, age_s: float
    ) -> None:
        at = self.pool.now - age_s
        for _ in range(times):
            ready = self.pool.in_state(State.READY, role)
            changes = self.pool.say(address_of(index, role), failure, placed_at=at)
            self.take([*changes])
            if changes and failure is not REFUSED:
                assert len(ready) > 1, "the last one was ejected"

    @rule(index=INDEXES, role=ROLES, outcome=st.sampled_from(ProbeOutcome))
    def probe(self, index: int, role: Role, outcome: ProbeOutcome) -> None:
        address = self.known(index, role)
        if address is not None:
            self.take([self.pool.probe(address, outcome)])

    @rule(index=INDEXES, role=ROLES, dp_size=st.integers(1, 2))
    def hear(self, index: int, role: Role, dp_size: int) -> None:
        self.take([self.pool.hear(index, role, dp_size)])

    @rule(index=INDEXES, role=ROLES)
    def leave(self, index: int, role: Role) -> None:
        self.pool.registry.leave(address_of(index, role), self.pool.now)
        self.sweep(0.0)

    @rule(index=INDEXES, role=ROLES)
    def rejoin(self, index: int, role: Role) -> None:
        self.pool.registry.rejoin(address_of(index, role))

    @rule(seconds=st.floats(0.0, 30.0))
    def sweep(self, seconds: float) -> None:
        self.pool.now += seconds
        self.take([*self.pool.registry.sweep(self.pool.now, ())])

    @rule()
    def recover(self) -> None:
        """Good probes and time."""
        self.pool.now += RULE.backoff_max_s
        for target in self.pool.registry.probe_targets():
            self.take([self.pool.probe(target.address)])
        states = {m.state for m in self.pool.registry.members(None)}
        assert states <= {State.READY, State.LEAVING}

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "pool"):
            return
        members = self.pool.registry.members(None)
        for role in Role:
            counted = [
                m
                for m in members
                if m.instance.role is role and m.state not in (State.EXPIRED, State.LEAVING)
            ]
            out = [m for m in counted if m.instance.address in self.counted]
            assert len(out) <= len(counted) // 2
        assert not any(m.is_placeable for m in members if m.state is State.EJECTED)


Storm.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestStorm = Storm.TestCase
