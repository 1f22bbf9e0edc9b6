"""`kv_transfer_params` of a leg as a value (protocol.md c)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sidecar.sim.counters import Leg


@dataclass(frozen=True, slots=True)
class KvParams:
    """What one leg was told. `None` is absent or null, except for the two `has_` flags."""

    do_remote_decode: bool
    do_remote_prefill: bool
    transfer_id: str | None
    has_required_keys: bool
    """Both `remote_engine_id` and `remote_block_ids` exist, be it as null."""
    remote_engine_id: str | None
    remote_block_ids: tuple[int, ...]
    """All groups, one after the other."""
    remote_host: str | None
    remote_handshake_port: int | None
    remote_notify_port: int | None
    remote_dp_rank: int
    remote_dp_size: int
    remote_tp_size: int
    """0 = not told."""
    remote_dp_rank_override: bool
    is_request_leader: bool | None


def leg_of(params: Any) -> Leg:
    """What a body is by the flags of its `kv_transfer_params`, whatever else is wrong with them."""
    if isinstance(params, Mapping) and params.get("do_remote_decode"):
        return "prefill"
    return "decode" if isinstance(params, Mapping) and params.get("do_remote_prefill") else "plain"


def read_kv_params(params: Mapping[str, Any]) -> KvParams:
    """Read the object; raises ValueError naming a key of a type vLLM could not use."""
    leader = params.get("is_request_leader")
    return KvParams(
        do_remote_decode=bool(params.get("do_remote_decode")),
        do_remote_prefill=bool(params.get("do_remote_prefill")),
        transfer_id=_string(params, "transfer_id"),
        has_required_keys="remote_engine_id" in params and "remote_block_ids" in params,
        remote_engine_id=_string(params, "remote_engine_id"),
        remote_block_ids=_block_ids(params.get("remote_block_ids")),
        remote_host=_string(params, "remote_host"),
        remote_handshake_port=_number(params, "remote_handshake_port"),
        remote_notify_port=_number(params, "remote_notify_port"),
        remote_dp_rank=_number(params, "remote_dp_rank") or 0,
        remote_dp_size=_number(params, "remote_dp_size") or 0,
        remote_tp_size=_number(params, "remote_tp_size") or _number(params, "tp_size") or 0,
        remote_dp_rank_override=bool(params.get("remote_dp_rank_override")),
        is_request_leader=None if leader is None else bool(leader),
    )


def _string(params: Mapping[str, Any], key: str) -> str | None:
    value = params.get(key)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"kv_transfer_params.{key} is not a string")
    return value


def _number(params: Mapping[str, Any], key: str) -> int | None:
    value = params.get(key)
    # Ports come as strings when an engine's configuration has strings (protocol.md c).
    if isinstance(value, str) and value.isascii() and value.isdecimal():
        return int(value)
    if value is not None and type(value) is not int:
        raise ValueError(f"kv_transfer_params.{key} is not a number")
    return value


def _block_ids(value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise ValueError("kv_transfer_params.remote_block_ids is not a list")
    # Nested, one list for each KV cache group, since 0.20; flat before.
    flat = [i for group in value for i in (group if isinstance(group, list) else [group])]
    if not all(type(i) is int for i in flat):
        raise ValueError("kv_transfer_params.remote_block_ids holds something but numbers")
    return tuple(flat)
