"""Legs that are wrong in one thing, and what engines of vLLM 0.32 were seen to do with each.

Invariant: an outcome here was seen on real engines, by a run of these rows or, where the engine
does not survive it, by hand.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

Params = dict[str, Any]
Change = Callable[[Params, Params], Params]
"""`kv_transfer_params` as they must be, and those of a request that is over, to what is sent"""


class Answered(StrEnum):
    RIGHT = "the right text"
    OTHER = "200 with other text"
    ERROR = "500"
    NOTHING = "nothing, until the client leaves"


@dataclass(frozen=True)
class Broken:
    name: str
    connector: str
    mode: str
    change: Change
    answered: Answered
    keeps: tuple[str, ...] = ()
    """whose blocks stay when the client has its answer, or has left: prefill's until it gives them
    up, decode's until it ends"""
    dies: str = ""
    """whose engine"""
    of: str = "decode"
    """the leg that is wrong"""

    @property
    def wiring(self) -> tuple[str, str]:
        return self.connector, self.mode

    @property
    def is_survived(self) -> bool:
        return not self.dies and "decode" not in self.keeps


def _without(*names: str) -> Change:
    return lambda own, _: {k: v for k, v in own.items() if k not in names}


def _with(**changed: Any) -> Change:
    return lambda own, _: own | changed


def _from_other(*names: str) -> Change:
    return lambda own, other: own | {name: other[name] for name in names}


def _other_rank(own: Params, _: Params) -> Params:
    return own | {"remote_dp_rank": 1 - own["remote_dp_rank"]}


def _other_nixl_rank(own: Params, _: Params) -> Params:
    engine, rank = own["remote_engine_id"][:-1], int(own["remote_engine_id"][-1])
    port = own["remote_port"] + 1 - 2 * rank
    return own | {"remote_engine_id": f"{engine}{1 - rank}", "remote_port": port}


def _fewer_blocks(own: Params, _: Params) -> Params:
    return own | {"remote_block_ids": [own["remote_block_ids"][0][:-1]]}


UNCHANGED = "unchanged"
"""to see that the others fail for what is wrong with them"""
PREFILL, BOTH = ("prefill",), ("prefill", "decode")
NIXL, READ, WRITE = ("nixl", "READ"), ("moriio", "READ"), ("moriio", "WRITE")

BROKEN = [
    Broken(UNCHANGED, *NIXL, lambda own, _: own, Answered.RIGHT),
    Broken(
        "no `remote_block_ids`", *NIXL, _without("remote_block_ids"), Answered.ERROR, dies="decode"
    ),
    Broken("fewer blocks than the prompt has", *NIXL, _fewer_blocks, Answered.ERROR, dies="decode"),
    Broken(
        "another `remote_engine_id`",
        *NIXL,
        _with(remote_engine_id="nobody"),
        Answered.ERROR,
        PREFILL,
    ),
    Broken("the other rank", *NIXL, _other_nixl_rank, Answered.OTHER, PREFILL),
    Broken(
        "blocks of a request that is over", *NIXL, _from_other("remote_block_ids"), Answered.OTHER
    ),
    Broken(
        "an unknown `remote_request_id`",
        *NIXL,
        _with(remote_request_id="nobody"),
        Answered.RIGHT,
        PREFILL,
    ),
    Broken("another `remote_port`, of a known engine", *NIXL, _with(remote_port=9), Answered.RIGHT),
    Broken("no `remote_host`", *NIXL, _without("remote_host"), Answered.NOTHING, dies="decode"),
    Broken(UNCHANGED, *READ, lambda own, _: own, Answered.RIGHT),
    Broken("no `remote_block_ids`", *READ, _without("remote_block_ids"), Answered.OTHER, PREFILL),
    Broken("the other `remote_dp_rank`", *READ, _other_rank, Answered.OTHER, PREFILL),
    Broken(
        "a `transfer_id` that is over", *READ, _from_other("transfer_id"), Answered.RIGHT, PREFILL
    ),
    Broken(UNCHANGED, *WRITE, lambda own, _: own, Answered.RIGHT),
    Broken("no `remote_block_ids`", *WRITE, _without("remote_block_ids"), Answered.RIGHT),
    Broken(
        "a `transfer_id` that is over", *WRITE, _from_other("transfer_id"), Answered.NOTHING, BOTH
    ),
    Broken("the other `remote_dp_rank`", *WRITE, _other_rank, Answered.NOTHING, BOTH),
    Broken(
        "no `remote_block_ids`",
        *WRITE,
        _without("remote_block_ids"),
        Answered.ERROR,
        dies="prefill",
        of="prefill",
    ),
]
