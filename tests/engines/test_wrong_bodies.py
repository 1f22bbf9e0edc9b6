"""A decode body that is not as it must be makes the comparison fail: so it is known to see one.

They leave blocks taken, or engines dead. Each begins by showing that the same way, with the body as
it is, gives right answers on what it got.
"""

from typing import Any

import pytest

from tests.engines.comparison import Differs
from tests.engines.fleet import GIVEN_UP_S, Fleet
from tests.engines.kinds import REAL, on
from tests.engines.meddled import LeftBehind, compare_meddled
from tests.engines.meddler import Change

pytestmark = pytest.mark.e2e

Params = dict[str, Any]


def swapped_ranks() -> Change:
    """Decode is told that the other one of prefill's two ranks has the KV."""

    def change(params: Params) -> Params:
        if "remote_dp_rank" in params:
            return params | {"remote_dp_rank": 1 - params["remote_dp_rank"]}
        engine, rank = params["remote_engine_id"][:-1], int(params["remote_engine_id"][-1])
        port = params["remote_port"] + 1 - 2 * rank
        return params | {"remote_engine_id": f"{engine}{1 - rank}", "remote_port": port}

    return change


def reused_transfer() -> Change:
    """Every request names the transfer of the first."""
    first: Params = {}

    def change(params: Params) -> Params:
        first.update(params if not first else {})
        names = ("transfer_id",) if "transfer_id" in params else ("remote_request_id",)
        return params | {name: first[name] for name in names}

    return change


def others_blocks() -> Change:
    """Every request fetches the blocks of the first."""
    first: Params = {}

    def change(params: Params) -> Params:
        first.update(params if not first else {})
        return params | {"remote_block_ids": first["remote_block_ids"]}

    return change


def no_blocks() -> Change:
    return lambda params: {k: v for k, v in params.items() if k != "remote_block_ids"}


# The last of NIXL's ends the engine.
BROKEN = {
    "swapped ranks": swapped_ranks,
    "reused transfer": reused_transfer,
    "others' blocks": others_blocks,
    "no blocks": no_blocks,
}
BROKEN_S = 15.0
"""for an answer: some never come"""


@on(REAL)
@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_body_is_seen(spoilt_fleet: Fleet, broken: str) -> None:
    """The answers tell; but for another's transfer id with the right blocks, where the text is
    right and prefill keeps blocks that nobody says he has fetched."""
    fleet = spoilt_fleet
    is_write = fleet.kind.mode == "WRITE"
    if is_write and "blocks" in broken:
        pytest.skip("in WRITE decode has blocks of its own, and is told of none")
    compare_meddled(fleet, lambda params: params, f"before {broken}", must_rest=False)
    if is_write or broken != "reused transfer":
        with pytest.raises(Differs):
            compare_meddled(fleet, BROKEN[broken](), broken, BROKEN_S, must_rest=False)
        return
    fleet.rest(GIVEN_UP_S)
    with pytest.raises(LeftBehind):
        compare_meddled(fleet, BROKEN[broken](), broken)
