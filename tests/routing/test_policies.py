"""Who may serve a request: roles, modes, models, TP sizes, aggregated and single requests."""

import msgspec
import pytest
from routing_pools import decode, keys, placed, pool, prefill, shaped

from sidecar.routing.instance import Connector, Role, TransferMode, Version
from sidecar.routing.model_card import ModelCard
from sidecar.routing.policies import (
    another_decode,
    pick,
    spare_decode,
)
from sidecar.routing.pool import compatible
from sidecar.routing.slots import Demand, MemoryCursors, NoPlacement, Placement
from sidecar.routing.view import Member

WRITE = TransferMode.WRITE
NIXL = {"connector": Connector.NIXL}


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ([], "no_prefill_instance"),
        ([decode(0)], "no_prefill_instance"),
        ([prefill(0)], "no_decode_instance"),
        ([prefill(0), decode(1, mode=WRITE)], "no_decode_instance"),
        ([prefill(0), decode(1, **NIXL)], "no_decode_instance"),
        ([prefill(0, tp_size=3), decode(1, tp_size=4)], "no_decode_instance"),
        ([prefill(0, is_placeable=False), decode(1)], "no_prefill_instance"),
        ([prefill(0), decode(1, is_placeable=False)], "no_decode_instance"),
        ([prefill(0, models=("a",)), decode(1, models=("b",))], "no_decode_instance"),
    ],
)
def test_the_reason_names_the_role_that_lacks(members: list, reason: str) -> None:
    candidates = pool(*members)
    assert candidates.lack(None) == reason
    assert pick(candidates, Demand(), MemoryCursors()) == NoPlacement(reason)


@pytest.mark.parametrize(
    ("a", "b", "fits"),
    [
        (prefill(0), decode(1), True),
        (prefill(0, tp_size=8), decode(1, tp_size=2), True),
        (prefill(0, tp_size=2), decode(1, tp_size=8), True),
        (prefill(0, tp_size=6), decode(1, tp_size=4), False),
        (prefill(0), decode(1, mode=WRITE), False),
        (prefill(0), decode(1, **NIXL), False),
        (prefill(0, **NIXL), decode(1, **NIXL), True),
        (prefill(0, tp_size=6, **NIXL), decode(1, tp_size=4, **NIXL), False),
        (prefill(0, models=("a", "x")), decode(1, models=("x",)), True),
        (prefill(0, models=("a",)), decode(1, models=("b",)), False),
        (prefill(0), decode(1, models=("b",)), True),
    ],
)
def test_a_pair_needs_one_connector_mode_and_model_and_dividing_tp(a, b, fits: bool) -> None:
    assert compatible(a, b) is fits
    assert compatible(b, a) is fits


def test_a_model_goes_to_those_that_serve_it_or_may() -> None:
    candidates = pool(
        prefill(0, models=("a",)),
        prefill(1, models=("b",)),
        prefill(2),
        decode(3, models=("a",)),
        decode(4, models=("b",)),
    )
    cursors = MemoryCursors()
    pairs = {keys(placed(candidates, cursors, Demand(model="a"))) for _ in range(8)}
    assert {(p[1], d[1]) for p, d in pairs} == {(0, 3), (2, 3)}


def test_a_request_without_a_model_goes_anywhere_but_never_across_models() -> None:
    candidates = pool(
        prefill(0, models=("a",)),
        prefill(1, models=("b",)),
        decode(2, models=("a",)),
        decode(3, models=("b",)),
    )
    cursors = MemoryCursors()
    pairs = {keys(placed(candidates, cursors, Demand())) for _ in range(8)}
    assert {(p[1], d[1]) for p, d in pairs} == {(0, 2), (1, 3)}


def test_a_model_that_nobody_serves_goes_whole_to_one_instance() -> None:
    """It says so in its own words, and no KV is moved for it. While one instance has not said what
    it serves, the model may be its own."""
    known = [prefill(0, models=("a",)), decode(1, models=("a",))]
    result = placed(pool(*known), MemoryCursors(), Demand(model="nobody-serves-this"))
    assert result.decode is None
    assert pool(*known).group_model("nobody-serves-this") == ""
    silent = pool(*known, prefill(2), decode(3))
    cursors = MemoryCursors()
    pairs = [placed(silent, cursors, Demand(model="nobody-serves-this")) for _ in range(8)]
    assert all(pair.decode is not None for pair in pairs)
    away = pool(*known, prefill(2, is_placeable=False))
    assert placed(away, MemoryCursors(), Demand(model="x")).decode is None


def with_adapter(member: Member, *names: str) -> Member:
    """With adapters of its first model."""
    base = member.models[0]
    cards = (ModelCard(base), *(ModelCard(name, parent=base) for name in names))
    return msgspec.structs.replace(member, models=(*member.models, *names), cards=cards)


def test_an_adapter_that_one_role_alone_has_is_served_whole() -> None:
    """It was loaded there a moment before the other, or the other was asked a moment before."""
    p, d = prefill(0, models=("a",)), decode(1, models=("a",))
    other = [prefill(2, models=("b",)), decode(3, models=("b",))]
    plain = msgspec.structs.replace(d, version=Version(0, 33))
    for members, served in (
        ([with_adapter(p, "l"), d], 0),
        ([p, with_adapter(d, "l")], 0),  # it may know it by now; decode would garble it
        ([p, with_adapter(plain, "l")], 1),
    ):
        for wanted in Role:
            demand = Demand(model="l", aggregated_role=wanted)
            result = placed(pool(*members, *other), MemoryCursors(), demand)
            assert (result.prefill is None) or (result.decode is None)
            assert result.answering.member.ordinal == served
    both_ = pool(with_adapter(p, "l"), with_adapter(d, "l"), *other)
    assert placed(both_, MemoryCursors(), Demand(model="l")).decode is not None


def test_an_adapter_whose_decode_instances_are_down_is_not_served_whole() -> None:
    """They have it, and are away: as for a model, that is 503."""
    p = with_adapter(prefill(0, models=("a",)), "l")
    d = with_adapter(decode(1, models=("a",), is_placeable=False), "l")
    lone = pool(p, d, decode(2, models=("a",)))
    assert pick(lone, Demand(model="l"), MemoryCursors()) == NoPlacement("no_decode_instance")


def test_a_model_whose_instances_are_down_is_not_sent_to_another_model() -> None:
    candidates = pool(
        prefill(0, models=("a",)),
        decode(1, models=("a",)),
        prefill(2, models=("b",), is_placeable=False),
        decode(3, models=("b",)),
    )
    result = pick(candidates, Demand(model="b"), MemoryCursors())
    assert result == NoPlacement("no_prefill_instance")


def test_an_aggregated_request_walks_prefill_slots_by_itself() -> None:
    candidates, cursors = shaped([2, 1], [1]), MemoryCursors()
    demand = Demand(is_aggregated=True)
    served = []
    for _ in range(6):
        placed(candidates, cursors)
        result = placed(candidates, cursors, demand)
        assert result.decode is None
        assert result.prefill is not None
        assert result.answering is result.prefill
        served.append(result.prefill.key)
    assert served == [(0, 0), (0, 1), (1, 0)] * 2


def test_an_aggregated_request_needs_no_decode_instance() -> None:
    result = pick(pool(prefill(0)), Demand(is_aggregated=True), MemoryCursors())
    assert isinstance(result, Placement)


@pytest.mark.parametrize(
    ("kind", "role"),
    [
        ({"mode": WRITE}, Role.PREFILL),
        ({"mode": WRITE, "version": Version(0, 31)}, Role.PREFILL),
        ({"mode": WRITE, "version": Version(0, 32)}, Role.DECODE),
        ({"version": Version(0, 33)}, Role.DECODE),
        ({"version": Version(0, 32)}, Role.PREFILL),
        ({}, Role.PREFILL),
        (NIXL, Role.DECODE),
        (NIXL | {"version": Version(0, 25)}, Role.DECODE),
    ],
)
def test_aggregated_on_decode_only_where_that_is_safe(kind: dict, role: Role) -> None:
    demand = Demand(is_aggregated=True, aggregated_role=Role.DECODE)
    result = placed(pool(prefill(0), decode(1, **kind)), MemoryCursors(), demand)
    assert result.answering.member.instance.role is role


def test_a_single_request_prefers_prefill_and_takes_decode_else() -> None:
    cursors = MemoryCursors()
    for members, role in [
        ([prefill(0), decode(1)], Role.PREFILL),
        ([prefill(0, is_placeable=False), decode(1)], Role.DECODE),
    ]:
        result = pick(pool(*members), Demand(is_model_free=True), cursors)
        assert isinstance(result, Placement)
        assert result.answering.member.instance.role is role
    assert isinstance(pick(pool(), Demand(is_model_free=True), cursors), NoPlacement)


def test_another_decode_is_compatible_and_moves_the_walk() -> None:
    cursors = MemoryCursors()
    both = [decode(2, tp_size=4), decode(3, tp_size=4), decode(4, tp_size=4)]
    candidates = pool(prefill(0, tp_size=2), *both, decode(5, tp_size=3))
    first = placed(candidates, cursors)
    assert first.decode is not None
    assert candidates.is_placeable(first.decode)
    later = pool(prefill(0, tp_size=2, is_placeable=False), *both[1:], decode(5, tp_size=3))
    assert not later.is_placeable(first.decode)
    second = another_decode(later, first, Demand(), cursors)
    assert isinstance(second, Placement)
    assert second.prefill == first.prefill
    assert second.decode is not None
    assert second.decode.member.ordinal == 3
    none = pool(prefill(0, tp_size=2), decode(5, tp_size=3))
    assert another_decode(none, first, Demand(), cursors) == NoPlacement("no_decode_instance")


def test_after_another_decode_the_next_request_gets_the_next_slot() -> None:
    cursors, candidates = MemoryCursors(), shaped([1], [1, 1, 1])
    first = placed(candidates, cursors)
    another_decode(candidates, first, Demand(), cursors)
    assert keys(placed(candidates, cursors))[1] == (0, 3)


def test_a_changed_record_is_no_longer_the_target_that_was_picked() -> None:
    target = placed(shaped([1], [2]), MemoryCursors()).decode
    assert target is not None
    assert not shaped([1], [1]).is_placeable(target)
    assert shaped([1], [2]).is_placeable(target)


def test_the_spare_has_the_chosen_rank_on_another_instance() -> None:
    cursors, candidates = MemoryCursors(), shaped([1], [2, 1, 3])
    spares = []
    for _ in range(5):
        placement = placed(candidates, cursors)
        spare = spare_decode(candidates, placement, Demand())
        assert spare is not None
        spares.append((keys(placement)[1], spare.key))
    assert spares == [
        ((0, 1), (0, 2)),
        ((0, 2), (0, 3)),
        ((0, 3), (0, 1)),
        ((1, 1), (1, 3)),
        ((1, 3), (1, 1)),
    ]


def test_no_spare_where_no_instance_has_the_rank() -> None:
    candidates, cursors = shaped([1], [1, 2]), MemoryCursors()
    assert [
        spare_decode(candidates, placed(candidates, cursors), Demand()) is None for _ in range(3)
    ] == [False, False, True]


def test_a_pool_says_what_it_is() -> None:
    candidates = pool(prefill(0, models=("a",)), decode(1, mode=WRITE, models=("a", "b")))
    assert candidates.models == {"a", "b"}
    assert "prefill" in repr(candidates)
