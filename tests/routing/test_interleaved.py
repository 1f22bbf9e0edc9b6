"""The properties of the walk that design §5 promises."""

from collections import Counter
from itertools import pairwise, product
from math import gcd, lcm

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from routing_pools import decode, keys, placed, pool, prefill, shaped

from sidecar.routing.instance import TransferMode
from sidecar.routing.policies import pick
from sidecar.routing.slots import Cursor, Demand, MemoryCursors, Slot, Walk, every_slot

# (instances, dp_size) of vLLM's fairness test (protocol d).
SHAPES = [[1], [1] * 2, [1] * 4, [8], [8] * 2, [8] * 3]
UNEQUAL = [[8, 4, 1], [2, 1], [3, 8]]
SIZES = st.lists(st.integers(1, 5), min_size=1, max_size=4)
COMMON = settings(deadline=None, max_examples=60)


def each_cycle_is_exact(served: list[object], size: int) -> bool:
    cycles = [served[i : i + size] for i in range(0, len(served) - size + 1, size)]
    return all(len(set(cycle)) == size for cycle in cycles)


@pytest.mark.parametrize(("p", "d"), [*product(SHAPES + UNEQUAL, repeat=2)])
def test_every_cycle_is_exact_and_every_pair_comes_once(p: list[int], d: list[int]) -> None:
    n, m = sum(p), sum(d)
    cursors, candidates = MemoryCursors(), shaped(p, d)
    pairs = [keys(placed(candidates, cursors)) for _ in range(2 * n * m)]
    assert each_cycle_is_exact([pair[0] for pair in pairs], n)
    assert each_cycle_is_exact([pair[1] for pair in pairs], m)
    assert len(set(pairs[: n * m])) == n * m
    assert set(Counter(pairs).values()) == {2}


@COMMON
@given(p=SIZES, d=SIZES)
def test_decode_is_k_plus_the_seams_before_it(p: list[int], d: list[int]) -> None:
    candidates, cursors = shaped(p, d), MemoryCursors()
    group = candidates.groups(None)[0]
    decode_keys = group.lanes[0].decode.keys
    n, m = sum(p), sum(d)
    for k in range(n * m + 3):
        at_prefill, at_decode = keys(placed(candidates, cursors))
        assert at_prefill == group.prefill.keys[k % n]
        assert at_decode == decode_keys[(k + k // lcm(n, m)) % m]


@pytest.mark.parametrize(("p", "d"), [*product([s for s in SHAPES if len(s) > 1], SHAPES)])
def test_consecutive_requests_alternate_instances_but_for_seams(p: list[int], d: list[int]) -> None:
    cursors, candidates = MemoryCursors(), shaped(p, d)
    n, m = sum(p), sum(d)
    pairs = [keys(placed(candidates, cursors)) for _ in range(n * m)]
    for k, (before, after) in enumerate(pairwise(pairs), start=1):
        assert before[0][1] != after[0][1]
        is_seam = k % lcm(n, m) == 0
        assert len(d) == 1 or is_seam or before[1][1] != after[1][1]


@pytest.mark.parametrize("dp_size", [1, 8])
def test_one_rank_forwards_no_header_and_more_forward_each(dp_size: int) -> None:
    cursors, candidates = MemoryCursors(), shaped([dp_size] * 2, [1])
    ranks = Counter()
    for _ in range(2 * dp_size):
        target = placed(candidates, cursors).prefill
        assert target is not None
        ranks[target.member.instance.address, target.rank_header] += 1
    expected = [None] if dp_size == 1 else [str(rank) for rank in range(8)]
    assert sorted(ranks.values()) == [1] * 2 * dp_size
    assert {header for _, header in ranks} == set(expected)


@COMMON
@given(
    steps=st.lists(
        st.one_of(
            st.integers(1, 12),
            st.sets(st.integers(0, 5), min_size=1).map(frozenset),
        ),
        min_size=2,
        max_size=12,
    )
)
def test_a_membership_change_neither_restarts_the_walk_nor_serves_twice(
    steps: list[int | frozenset[int]],
) -> None:
    """A step is so many requests, or the set of prefill instances from here on. Between two turns
    of a slot, every slot that was a member all the time had its own turn."""
    cursors, alive = MemoryCursors(), frozenset(range(6))
    history: list[tuple[tuple[int, int], frozenset[int]]] = []
    for step in steps:
        if isinstance(step, frozenset):
            alive = step
            continue
        candidates = pool(*(prefill(i, dp_size=1 + i % 3) for i in sorted(alive)), decode(9))
        for _ in range(step):
            history.append((keys(placed(candidates, cursors))[0], alive))
    last: dict[tuple[int, int], int] = {}
    for now, (key, _) in enumerate(history):
        if key in last:
            between = history[last[key] : now + 1]
            lasting = frozenset.intersection(*(members for _, members in between))
            expected = {(rank, i) for i in lasting for rank in range(1 + i % 3)}
            assert expected - {served for served, _ in between} == set()
        last[key] = now


@COMMON
@given(who=st.lists(st.booleans(), min_size=20, max_size=60))
def test_a_worker_with_an_older_view_does_not_serve_a_slot_twice(who: list[bool]) -> None:
    older = shaped([2, 2, 2], [1])
    newer = pool(*(prefill(i, dp_size=2) for i in (0, 1, 2, 4)), decode(3))
    cursors = MemoryCursors()
    served = [keys(placed(newer if is_new else older, cursors))[0] for is_new in who]
    common = [key for key in served if key[1] != 4]
    assert each_cycle_is_exact(common, 6)


def test_a_change_resets_the_seam_counter_alone() -> None:
    cursors, before = MemoryCursors(), shaped([1, 1], [1, 1])
    for _ in range(3):
        placed(before, cursors)
    name = before.groups(None)[0].name
    was = cursors.get(name)
    after = pool(*before.view.members, decode(7))
    (prefill_key, decode_key) = keys(placed(after, cursors))
    assert was.prefill is not None
    assert was.decode is not None
    assert prefill_key == (0, 1 - was.prefill[1])
    assert decode_key > was.decode
    assert cursors.get(name).served == 1


def test_two_groups_in_alternating_traffic_starve_no_slot() -> None:
    members = [
        make(10 * side + i, models=(model,), dp_size=2)
        for side, make in enumerate([prefill, decode])
        for i, model in enumerate(["a", "a", "b", "b"])
    ]
    cursors, candidates, seen = MemoryCursors(), pool(*members), Counter()
    for _ in range(4 * 4):
        for model in ("a", "b"):
            for target in keys(placed(candidates, cursors, Demand(model=model))):
                seen[target] += 1
    assert len(seen) == 16
    assert set(seen.values()) == {4}


def test_a_model_in_both_modes_is_spread_by_prefill_slots() -> None:
    read, write = TransferMode.READ, TransferMode.WRITE
    members = [prefill(0, mode=read), *(prefill(i, mode=write) for i in (1, 2, 3))]
    members += [decode(4, mode=read), decode(5, mode=write), decode(6, mode=write)]
    cursors, candidates = MemoryCursors(), pool(*members)
    placements = [placed(candidates, cursors) for _ in range(40)]
    for four in range(0, 40, 4):
        modes = Counter(placement.mode for placement in placements[four : four + 4])
        assert modes == {read: 1, write: 3}
    # A change in one group gives it no burst to catch up.
    changed = pool(*members, decode(7, mode=write))
    assert Counter(placed(changed, cursors).mode for _ in range(8)) == {read: 2, write: 6}


def test_disjoint_tp_pairs_starve_no_decode_slot_and_never_cross() -> None:
    """One decode cursor for both kinds of prefill would give each the same slot for ever."""
    members = [prefill(0, tp_size=4), prefill(1, tp_size=6)]
    members += [decode(2, tp_size=4), decode(3, tp_size=8)]
    members += [decode(4, tp_size=6), decode(5, tp_size=3)]
    cursors, candidates = MemoryCursors(), pool(*members)
    pairs = [keys(placed(candidates, cursors)) for _ in range(40)]
    assert Counter((p[1], d[1]) for p, d in pairs) == {
        (0, 2): 10,
        (0, 3): 10,
        (1, 4): 10,
        (1, 5): 10,
    }


@COMMON
@given(
    p=SIZES,
    d=SIZES,
    tried=st.sets(st.tuples(st.booleans(), st.integers(0, 3), st.integers(0, 4)), max_size=12),
    before=st.integers(0, 30),
)
def test_an_excluded_slot_is_never_handed_out(
    p: list[int], d: list[int], tried: set[tuple[bool, int, int]], before: int
) -> None:
    candidates, cursors = shaped(p, d), MemoryCursors()
    excluded = frozenset(
        Slot(f"10.0.{int(is_decode)}.{i + len(p) * is_decode}:8000", rank)
        for is_decode, i, rank in tried
    )
    for _ in range(before):
        placed(candidates, cursors)
    group = candidates.groups(None)[0]
    open_prefill = {t.slot for t in group.prefill.targets} - excluded
    open_decode = {t.slot for t in group.lanes[0].decode.targets} - excluded

    for _ in range(2 * len(group.prefill)):
        result = pick(candidates, Demand(excluded=excluded), cursors)
        if not open_prefill or not open_decode:
            missing = "prefill" if not open_prefill else "decode"
            assert getattr(result, "reason", None) == f"no_{missing}_instance"
            return
        assert result.prefill.slot in open_prefill
        assert result.decode.slot in open_decode


def test_every_slot_names_all_ranks_of_an_instance() -> None:
    assert {slot.dp_rank for slot in every_slot(prefill(0, dp_size=3).instance)} == {0, 1, 2}


def test_the_walk_wraps_and_skips() -> None:
    walk = Walk([prefill(0, dp_size=2), prefill(1)])
    assert walk.keys == ((0, 0), (0, 1), (1, 0))
    assert walk.after(None) == 0
    assert walk.after((1, 0)) == 0
    assert walk.after((1, 0), skip=1) == 1
    assert walk.after((0, 1), skip=1) == 0
    assert walk.after((0, 7)) == 2


@COMMON
@given(
    p=SIZES,
    d=SIZES,
    start=st.builds(
        Cursor,
        prefill=st.none() | st.tuples(st.integers(0, 9), st.integers(0, 9)),
        decode=st.none() | st.tuples(st.integers(0, 9), st.integers(0, 9)),
        served=st.integers(0, 2**40),
        fingerprint=st.integers(0, 2**32 - 1),
    ),
)
def test_from_any_cursor_every_pair_comes_once(p: list[int], d: list[int], start: Cursor) -> None:
    """Whatever an earlier life left behind, n·m requests from a reset on are exact."""
    candidates, cursors = shaped(p, d), MemoryCursors()
    cursors.put(candidates.groups(None)[0].name, start)
    n, m = sum(p), sum(d)
    assert len({keys(placed(candidates, cursors)) for _ in range(n * m)}) == n * m
    assert n * m // lcm(n, m) == gcd(n, m)
