"""A leg that is wrong in one thing does to the simulator what it does to real engines."""

import pytest

from tests.e2e.stack import http, until
from tests.engines.broken_legs import BROKEN, Answered, Broken
from tests.engines.fleet import GIVEN_UP_S, REST_S, Fleet, Kind
from tests.engines.legs import Leg, decode_params, prefill_params, send
from tests.engines.questions import Questions

pytestmark = pytest.mark.e2e

RANK = 1
"""of both engines: 0 is what a missing rank means"""
CASES = [
    pytest.param(
        Kind(is_real, *broken.wiring),
        broken,
        id=f"{Kind(is_real, *broken.wiring).name}: {broken.of}: {broken.name}".replace("`", ""),
        marks=[pytest.mark.vllm] if is_real else [],
    )
    for is_real in (False, True)
    for broken in BROKEN
    if broken.is_survived or not is_real
]


@pytest.mark.parametrize(("keeper", "broken"), CASES, indirect=["keeper"], scope="session")
def test_a_broken_leg_does_what_it_did_to_vllm(fleet: Fleet, broken: Broken) -> None:
    """What is answered, who dies of it, whose blocks are kept and whether they are given up."""
    if not broken.is_survived:
        fleet.spoil()
    alone, leg = run(fleet, broken)
    assert answered(alone, leg) is broken.answered, leg
    check_lives(fleet, broken.dies)
    if not broken.dies:
        check_blocks(fleet, broken.keeps)


def run(fleet: Fleet, broken: Broken) -> tuple[Leg, Leg]:
    """The answer of prefill alone, and what came of the broken leg."""
    asked = Questions(f"leg {broken.name}")
    first, second = (asked.text(100, 8).body for _ in range(2))
    over: dict[str, object] = {}
    if broken.of == "decode":
        own = prefill_params(fleet)
        over = decode_params(fleet, own, prefill(fleet, first, own).params, RANK)
        assert send(fleet.decode, first, over, RANK).status == 200
    own = prefill_params(fleet)
    alone = send(fleet.prefill, second, None, RANK)
    if broken.of == "prefill":
        return alone, prefill(fleet, second, broken.change(own, over))
    right = decode_params(fleet, own, prefill(fleet, second, own).params, RANK)
    return alone, send(fleet.decode, second, broken.change(right, over), RANK)


def prefill(fleet: Fleet, body: dict[str, object], params: dict[str, object]) -> Leg:
    one = {"max_tokens": 1, "min_tokens": 1, "ignore_eos": True}
    return send(fleet.prefill, body | one, params, RANK)


def answered(alone: Leg, leg: Leg) -> Answered:
    assert alone.status == 200, alone
    if leg.status == 200:
        return Answered.RIGHT if leg.text == alone.text else Answered.OTHER
    return Answered.ERROR if leg.status == 500 else Answered.NOTHING


def check_lives(fleet: Fleet, dies: str) -> None:
    for engine in (fleet.prefill, fleet.decode):
        is_alive = engine.role != dies
        until(
            lambda e=engine, a=is_alive: (http("GET", f"{e.url}/health")[0] == 200) is a,
            f"{engine.role} {'lives' if is_alive else 'has died'}",
        )


def check_blocks(fleet: Fleet, keeps: tuple[str, ...]) -> None:
    """Those who keep none are at rest soon; prefill gives up what it keeps, and decode does not."""
    engines = {engine.role: engine for engine in (fleet.prefill, fleet.decode)}
    limit_s = REST_S[fleet.kind.is_real]
    for role in engines.keys() - set(keeps):
        until(lambda r=role: fleet.counters(engines[r]).is_at_rest, f"{role} at rest", limit_s)
    kept = {role for role in keeps if fleet.counters(engines[role]).kv_usage > 0}
    assert kept == set(keeps)
    if "prefill" in keeps:
        until(lambda: fleet.counters(fleet.prefill).is_at_rest, "given up", GIVEN_UP_S)
    if "decode" in keeps:
        assert fleet.counters(fleet.decode).kv_usage > 0
