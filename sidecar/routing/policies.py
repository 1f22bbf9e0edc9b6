"""The pick: which slots serve this request. Synchronous, on values, no clock and no dice.

Knows neither the request's bytes nor how a leg is sent. Invariant: a walk moves only when a slot of
it is handed out; a NoPlacement moves none.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from sidecar.routing.instance import Role, TransferMode
from sidecar.routing.pool import Group, Lane, Pool, compatible
from sidecar.routing.slots import (
    Cursor,
    Cursors,
    Demand,
    NoPlacement,
    NoPlacementReason,
    Placement,
    Target,
    Walk,
)


def pick(pool: Pool, demand: Demand, cursors: Cursors) -> Placement | NoPlacement:
    """Place what `demand` asks for.

    A request for a model that nobody serves goes whole to one instance, which says so in its own
    words, or knows better than we do: adapters are loaded while engines run, and on one of them
    first.
    """
    if demand.is_model_free:
        return _pick_any(pool, demand, cursors)
    if demand.is_aggregated or not pool.is_for_a_pair(demand.model):
        return _pick_aggregated(pool, demand, cursors)
    refusal: Placement | NoPlacement | None = None
    for group in _in_turn(pool.groups(demand.model), pool.group_model(demand.model), cursors):
        result = interleaved(group, demand, cursors)
        if isinstance(result, Placement):
            return result
        refusal = result
    return refusal or NoPlacement(pool.lack(demand.model) or "no_prefill_instance")


def another_decode(
    pool: Pool, placement: Placement, demand: Demand, cursors: Cursors
) -> Placement | NoPlacement:
    """The same placement with another decode slot, for when its own is no longer placeable
    (`Pool.is_placeable`). The prefill instance need not be placeable any more: it holds the KV.

    The walk moves on past the slot, so that the next request does not get the same one; its seam
    counter does not: no new request came.
    """
    assert placement.prefill is not None
    assert placement.decode is not None
    prefill = placement.prefill
    walk = Walk(
        member
        for member in pool.candidates(demand.model, Role.DECODE)
        if compatible(prefill.member, member)
    )
    if not walk:
        return NoPlacement("no_decode_instance")
    name = _lane_name(pool, prefill, demand)
    cursor = cursors.get(name)
    at = walk.open_after(walk.after(cursor.decode), demand.excluded | {placement.decode.slot})
    if at is None:
        return NoPlacement("no_decode_instance")
    cursors.put(name, Cursor(cursor.prefill, walk.keys[at], cursor.served, cursor.fingerprint))
    return Placement(prefill, walk.targets[at], placement.mode)


def spare_decode(pool: Pool, placement: Placement, demand: Demand) -> Target | None:
    """A second host for a READ decode leg, which Envoy tries when the first refuses (design §7).

    The next instance at the same rank, because both get the same rank header. Moves no cursor: the
    spare is rarely used.
    """
    assert placement.prefill is not None
    assert placement.decode is not None
    if placement.mode is TransferMode.WRITE:  # prefill was told whom it pushes to
        return None
    lane = _lane_of(pool, placement.prefill, demand)
    if lane is None:
        return None
    chosen, walk = placement.decode, lane.decode
    at = bisect_right(walk.keys, chosen.key)
    if at == len(walk) or walk.keys[at][0] != chosen.dp_rank:
        at = bisect_left(walk.keys, (chosen.dp_rank, -1))
    if at == len(walk):
        return None
    spare = walk.targets[at]
    is_other = spare.member.instance.address != chosen.member.instance.address
    return spare if is_other and spare.dp_rank == chosen.dp_rank else None


def interleaved(group: Group, demand: Demand, cursors: Cursors) -> Placement | NoPlacement:
    """Both roles walk their slots rank-major; at each seam the decode walk skips one (design §5).

    With n prefill and m decode slots and k requests since the last membership change, decode is
    (k + k // lcm(n, m)) mod m from where it stood. So every pair occurs once in n·m requests, and
    every lap of either role still has each slot exactly once: lcm(n, m) is whole laps of both.
    """
    cursor = cursors.get(group.name)
    at = group.prefill.after(cursor.prefill)
    if demand.excluded:
        found = _first_open(group, at, demand)
        if isinstance(found, NoPlacement):
            return found
        at = found
    lane, target = group.lanes[at], group.prefill.targets[at]
    if lane.name == group.name:
        decode, moved = _decode_step(lane, demand, cursor)
        cursors.put(group.name, Cursor(target.key, moved.decode, moved.served, moved.fingerprint))
    else:
        decode, moved = _decode_step(lane, demand, cursors.get(lane.name))
        cursors.put(lane.name, moved)
        cursors.put(group.name, Cursor(target.key, None, cursor.served + 1))
    return Placement(target, decode, group.mode)


def _decode_step(lane: Lane, demand: Demand, cursor: Cursor) -> tuple[Target, Cursor]:
    served = cursor.served if cursor.fingerprint == lane.fingerprint else 0
    is_seam = served > 0 and served % lane.cycle == 0
    at = lane.decode.after(cursor.decode, skip=1 if is_seam else 0)
    if demand.excluded:
        found = lane.decode.open_after(at, demand.excluded)
        assert found is not None, "the prefill slot was chosen for having an open decode slot"
        at = found
    return lane.decode.targets[at], Cursor(
        cursor.prefill, lane.decode.keys[at], served + 1, lane.fingerprint
    )


def _first_open(group: Group, start: int, demand: Demand) -> int | NoPlacement:
    """Index of the first prefill slot from `start` on that is not excluded and has a decode slot
    that is not excluded either."""
    reason: NoPlacementReason = "no_prefill_instance"
    size = len(group.prefill)
    for step in range(size):
        at = (start + step) % size
        if group.prefill.targets[at].slot in demand.excluded:
            continue
        if group.lanes[at].decode.open_after(0, demand.excluded) is not None:
            return at
        reason = "no_decode_instance"
    return NoPlacement(reason)


def _in_turn(groups: Sequence[Group], model: str, cursors: Cursors) -> Sequence[Group]:
    """The groups of a model, the one whose turn it is first.

    A model that is served in both modes is spread over its two groups as their prefill slots are
    (of n + m requests in a row one gets n). The count goes on over membership changes, so that no
    change gives one group all requests until it has caught up.
    """
    if len(groups) < 2:
        return groups
    first, second = groups
    name = f"{model}|modes"
    count = cursors.get(name).served
    cursors.put(name, Cursor(served=count + 1))
    share, whole = len(first.prefill), len(first.prefill) + len(second.prefill)
    is_first = (count + 1) * share // whole > count * share // whole
    return (first, second) if is_first else (second, first)


def _pick_any(pool: Pool, demand: Demand, cursors: Cursors) -> Placement | NoPlacement:
    """A prefill instance if there is one."""
    walk = pool.any_role(demand.model)
    name = f"{pool.group_model(demand.model)}|single"
    return _pick_one(walk, name, demand, cursors) or NoPlacement("no_prefill_instance")


def _pick_aggregated(pool: Pool, demand: Demand, cursors: Cursors) -> Placement | NoPlacement:
    """A slot of the wanted role; no decode instance where it is safe: a prefill one. For an adapter
    the other role too, if that alone has it, and then who has the model it belongs to."""
    ways = [(demand.model, demand.aggregated_role), (demand.model, Role.PREFILL)]
    parent = pool.parent_of(demand.model)
    if parent is not None:
        ways += [(demand.model, Role.DECODE), (parent, Role.PREFILL)]
    for model, role in ways:
        name = f"{pool.group_model(model)}|aggregated-{role}"
        placement = _pick_one(pool.aggregated(model, role), name, demand, cursors)
        if placement is not None:
            return placement
    return NoPlacement("no_prefill_instance")


def _pick_one(walk: Walk, group: str, demand: Demand, cursors: Cursors) -> Placement | None:
    if not walk:
        return None
    cursor = cursors.get(group)
    at: int | None = walk.after(cursor.prefill)
    if at is not None and demand.excluded:
        at = walk.open_after(at, demand.excluded)
    if at is None:
        return None
    target = walk.targets[at]
    cursors.put(group, Cursor(prefill=target.key, served=cursor.served + 1))
    instance = target.member.instance
    if instance.role is Role.PREFILL:
        return Placement(target, None, instance.transfer_mode)
    return Placement(None, target, instance.transfer_mode)


def _lane_name(pool: Pool, prefill: Target, demand: Demand) -> str:
    """The cursor of the lane that the prefill slot is in; of its group once it has left it."""
    lane = _lane_of(pool, prefill, demand)
    if lane is not None:
        return lane.name
    return f"{pool.group_model(demand.model)}|{prefill.member.instance.transfer_mode}"


def _lane_of(pool: Pool, prefill: Target, demand: Demand) -> Lane | None:
    for group in pool.groups(demand.model):
        keys = group.prefill.keys
        at = bisect_left(keys, prefill.key)
        if at < len(keys) and keys[at] == prefill.key:
            return group.lanes[at]
    return None
