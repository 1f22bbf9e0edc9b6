"""`kv_transfer_params` of a decode leg as NIXL's pull connector reads them.

Nothing is checked when a request comes: vLLM looks each key up where it needs it, and what a wrong
one does depends on where that is.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

REQUIRED = ("remote_engine_id", "remote_request_id", "remote_host", "remote_port")
"""Must be there beside `remote_block_ids`, be it as null (nixl/pull_scheduler.py)."""
MORIIO_KEYS = (
    "remote_handshake_port",
    "remote_notify_port",
    "remote_dp_rank",
    "remote_dp_rank_override",
    "remote_dp_size",
    "remote_dp_size_local",
    "remote_tp_size",
    "is_request_leader",
)
"""NIXL looks at none of them; `transfer_id` alone does no harm and says little."""


@dataclass(frozen=True, slots=True)
class NixlParams:
    """One leg's. `block_ids` is whatever was sent."""

    block_ids: Any
    engine_id: Any
    request_id: Any
    host: Any
    port: Any
    has_required_keys: bool
    is_renewable: bool
    """Decode can name the blocks in its heartbeats (nixl/base_scheduler.py, `on_new_request`)."""


def read_nixl_params(params: Mapping[str, Any]) -> NixlParams:
    """Of any object at all."""
    engine_id, request_id, host, port = (params.get(key) for key in REQUIRED)
    told = (engine_id, request_id, host, port, params.get("tp_size"))
    return NixlParams(
        block_ids=params.get("remote_block_ids"),
        engine_id=engine_id,
        request_id=request_id,
        host=host,
        port=port,
        has_required_keys=all(key in params for key in REQUIRED),
        is_renewable=None not in told,
    )


def is_of_moriio(params: Mapping[str, Any]) -> bool:
    """Whether a leg is one of MoRI-IO's."""
    if any(key in params for key in MORIIO_KEYS):
        return True
    return "transfer_id" in params and "remote_port" not in params


def first_group(block_ids: Any, needed: int) -> list[int] | None:
    """The `needed` ids that decode reads: the last of the first group; None: vLLM's worker raises.

    A simulated engine has one group of KV blocks; vLLM leaves further ones alone.
    """
    if not isinstance(block_ids, list) or not isinstance(block_ids[0], list):
        return None
    group = block_ids[0]
    if len(group) < needed or not all(type(one) is int for one in group):
        return None
    return group[-needed:]
