"""The faults of a chaos run come from its seed, and never take all away at once."""

from itertools import pairwise

import pytest

from sidecar.sim.options import Role
from tests.chaos.engine_errors import EXPLAINED, unexplained
from tests.chaos.outages import Outages
from tests.chaos.plan import DECK, ENGINE_BACK_S, OUT_MAX, make_plan

ROLES: tuple[Role, ...] = ("prefill",) * 3 + ("decode",) * 3


def test_the_seed_decides_all_faults() -> None:
    """The same again, to the last parameter; another seed draws others."""
    plan = make_plan(7, 300, ROLES, 2)
    assert plan == make_plan(7, 300, ROLES, 2)
    assert plan != make_plan(8, 300, ROLES, 2)
    assert all(later.at_s - fault.at_s >= 0.999 for fault, later in pairwise(plan))
    assert 100 <= len(plan) <= 300


@pytest.mark.parametrize("seed", range(20))
def test_an_engine_of_each_role_is_always_in(seed: int) -> None:
    """By the plan's times at most two of three are out, and none is hit while it is out."""
    out: dict[int, float] = {}
    for fault in make_plan(seed, 300, ROLES, 2):
        if not fault.kind.startswith("engine"):
            continue
        assert out.get(fault.target, 0.0) <= fault.at_s
        if fault.lasts_s:
            out[fault.target] = fault.at_s + fault.lasts_s + ENGINE_BACK_S
        for role in ("prefill", "decode"):
            away = [i for i, until in out.items() if until > fault.at_s and ROLES[i] == role]
            assert len(away) <= OUT_MAX


@pytest.mark.parametrize("seed", range(20))
def test_a_run_of_half_a_minute_has_nearly_every_kind(seed: int) -> None:
    """So that a minute of CI kills each part of the sidecar; five minutes have them many times."""
    assert {fault.kind for fault in make_plan(seed, 60, ROLES, 2)} == set(DECK)
    long = [fault.kind for fault in make_plan(seed, 300, ROLES, 2)]
    assert min(long.count(kind) for kind in DECK) >= 5


def test_only_a_killed_peer_is_an_explanation() -> None:
    """Each explained kind has its reason; all others, also unheard ones, are faults."""
    assert unexplained({"unknown_transfer": 3, "push_unreachable": 1, "wrong_rank": 0}) == {}
    for kind in ("transfer_id_reuse", "wrong_rank", "missing_kv_keys", "garbled_plain", "news"):
        assert unexplained({kind: 1, "unknown_transfer": 1}) == {kind: 1}
    assert all(EXPLAINED.values())


def test_an_outage_touches_what_was_open_in_it() -> None:
    """From the kill to the first accepted connection, and nothing before or after."""
    outages = Outages()
    assert not outages.touch(0, 100)
    outages.begin(10)
    assert outages.is_now
    assert outages.touch(9, 11)
    assert outages.touch(50, 60)
    outages.end(20)
    assert not outages.is_now
    assert outages.touch(5, 10)
    assert outages.touch(19, 30)
    assert not outages.touch(21, 30)
    assert not outages.touch(1, 9)
