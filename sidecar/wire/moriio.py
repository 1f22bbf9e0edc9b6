"""MoRI-IO's `kv_transfer_params` and request ids (protocol b, c).

Pure values. Knows no body and no other connector; is given the instances of both legs.
`remote_engine_id` and `remote_block_ids` are always sent, null where unknown: leaving them out
kills a WRITE prefill engine.
"""

import msgspec

from sidecar.routing.instance import Instance, TransferMode, Version
from sidecar.routing.view import Member
from sidecar.wire.openai import FALSE, NULL, ONE, TRUE, Fields
from sidecar.wire.paths import Api

CLEAN_ID_UNTIL = Version(0, 19)
"""up to here the engine never looks into the request id"""
CLEAN_ID_FROM = Version(0, 32)
"""from here on explicit keys are enough (seen working there)"""
LATE_DECODE_FROM = Version(0, 32)
"""From here on a WRITE prefill engine that has answered keeps its blocks until decode asks, for its
`defer_timeout` (seen working there)."""


RANK_OF_RESPONSES_FROM = Version(0, 33)
"""Before it `/v1/responses` does not look at `x-data-parallel-rank`, and the engine takes any rank
(seen on 0.32)."""


def may_run_on_another_rank(api: Api, prefill: Member) -> bool:
    """Whether a prefill leg may run on another rank than it was sent to; its answer says which."""
    if api is not Api.RESPONSES or prefill.instance.dp_size == 1:
        return False
    return prefill.version is None or prefill.version < RANK_OF_RESPONSES_FROM


def ran_on(handed_over: Fields, rank: int) -> int:
    """The rank that prefill says it ran on; `rank`, where it was sent, if it does not say."""
    try:
        return msgspec.json.decode(handed_over["remote_dp_rank"], type=int)
    except (KeyError, msgspec.MsgspecError):
        return rank


def takes_late_decode(prefill: Member, decode: Member) -> bool:
    """Whether in WRITE decode may be asked after prefill has answered."""
    versions = (prefill.version, decode.version)
    return all(version is not None and version >= LATE_DECODE_FROM for version in versions)


def embeds_addresses(pair_versions: tuple[Version | None, Version | None]) -> bool:
    """Whether the request id must carry both addresses: the older engine of the pair decides.

    An unknown version is treated as 0.20 to 0.31 (design §4).
    """
    known = [v for v in pair_versions if v is not None]
    if len(known) < 2:
        return True
    older = min(known)
    return CLEAN_ID_UNTIL < older < CLEAN_ID_FROM


def request_id(prefill: Member, decode: Member, exchange_id: str) -> str:
    """The `X-Request-Id` of both legs; `exchange_id` is 32 lower-case hex (protocol b)."""
    if not embeds_addresses((prefill.version, decode.version)):
        return exchange_id
    ends = prefill.instance.zmq_address, decode.instance.zmq_address
    return f"___prefill_addr_{ends[0]}___decode_addr_{ends[1]}_{exchange_id}"


def end_by_length(leg: Fields, api: Api) -> None:
    """Change a prefill body so that nothing but its length ends it: KV is handed over only then
    (protocol c). Masks end of sequence and stops."""
    if api is Api.RESPONSES:
        leg["ignore_eos"] = TRUE  # all that it takes of the two
    elif api is not Api.MESSAGES:  # Anthropic's shape has neither
        leg["min_tokens"] = ONE
        leg["ignore_eos"] = TRUE


def prefill_params(decode: Instance, transfer_id: str, mode: TransferMode) -> dict[str, object]:
    """Of the prefill leg, whose blocks go to `decode`."""
    params: dict[str, object] = {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "transfer_id": transfer_id,
        "remote_engine_id": None,
        "remote_block_ids": None,
        "remote_dp_size": decode.dp_size,
        "remote_tp_size": decode.tp_size,
    }
    return params | _address(decode) if mode is TransferMode.WRITE else params


def decode_params_write(
    prefill: Instance, prefill_rank: int, transfer_id: str
) -> dict[str, object]:
    """Of the WRITE decode leg, which waits for the push of `prefill`."""
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "transfer_id": transfer_id,
        "remote_engine_id": None,
        "remote_block_ids": None,
        "remote_dp_size": prefill.dp_size,
        "remote_tp_size": prefill.tp_size,
        "remote_dp_rank": prefill_rank,
        # Each decode leg goes to one engine, so it is always the one that must notify.
        "is_request_leader": True,
    } | _address(prefill)


def decode_params_read(
    prefill: Instance, prefill_rank: int, transfer_id: str, handed_over: Fields
) -> Fields:
    """Of the READ decode leg: what prefill handed over, and the sizes of prefill.

    `handed_over` is forwarded verbatim: its block ids may be huge. What an older engine left out is
    filled in from its registration.
    """
    encode = msgspec.json.encode
    params: Fields = {k: msgspec.Raw(encode(v)) for k, v in _address(prefill).items()}
    params["remote_dp_rank"] = msgspec.Raw(encode(prefill_rank))
    params["remote_block_ids"] = params["remote_engine_id"] = NULL
    params |= handed_over
    params["do_remote_prefill"] = TRUE
    params["do_remote_decode"] = FALSE
    params["remote_tp_size"] = msgspec.Raw(encode(prefill.tp_size))
    # Its own word first: with a rank too many decode waits for a handshake for ever (protocol e).
    params.setdefault("remote_dp_size", msgspec.Raw(encode(prefill.dp_size)))
    params.setdefault("transfer_id", msgspec.Raw(encode(transfer_id)))
    return params


def _address(instance: Instance) -> dict[str, object]:
    return {
        "remote_host": instance.kv_host,
        "remote_handshake_port": instance.handshake_port,
        "remote_notify_port": instance.notify_port,
    }


def key_seen(params: Fields) -> str | None:
    """A key by which prefill's answer is MoRI-IO's and no other's; None: it may be another's."""
    return next((key for key in ("transfer_id", "remote_handshake_port") if key in params), None)
