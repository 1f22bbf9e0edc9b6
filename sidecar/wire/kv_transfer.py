"""MoRI-IO's `kv_transfer_params` and the request bodies and ids of both legs (protocol b, c).

Pure values to bytes. Does not choose who serves; is given the two instances and ranks.
`remote_engine_id` and `remote_block_ids` are always sent, null where unknown: leaving them out
kills a WRITE prefill engine.
"""

import msgspec

from sidecar.routing.instance import Instance, TransferMode, Version
from sidecar.routing.view import Member
from sidecar.wire.openai import FALSE, NULL, ONE, TRUE, Fields, join, split
from sidecar.wire.paths import Api

CLEAN_ID_UNTIL = Version(0, 19)
"""up to here the engine never looks into the request id"""
CLEAN_ID_FROM = Version(0, 32)
"""from here on explicit keys are enough (seen working there)"""

_PREFILL_DROPS = (
    "stream_options",
    "stop",
    "stop_token_ids",
    "stop_sequences",
    "logprobs",
    "top_logprobs",
    "logprob_token_ids",
    "prompt_logprobs",
    "echo",
)
"""Would be refused with `stream: false`, end prefill by anything but length, or cost it for
nothing."""


class Pair(msgspec.Struct, frozen=True):
    """The two ends of one transfer."""

    prefill: Member
    prefill_rank: int
    decode: Member
    decode_rank: int
    transfer_id: str
    """unique for each attempt: engines remember ids for ever (protocol c)"""


def embeds_addresses(pair_versions: tuple[Version | None, Version | None]) -> bool:
    """Whether the request id must carry both addresses: the older engine of the pair decides.

    An unknown version is treated as 0.20 to 0.31 (design §4).
    """
    known = [v for v in pair_versions if v is not None]
    if len(known) < 2:
        return True
    older = min(known)
    return CLEAN_ID_UNTIL < older < CLEAN_ID_FROM


def request_id(pair: Pair, exchange_id: str) -> str:
    """The `X-Request-Id` of both legs; `exchange_id` is 32 lower-case hex (protocol b)."""
    if not embeds_addresses((pair.prefill.version, pair.decode.version)):
        return exchange_id
    prefill, decode = pair.prefill.instance.zmq_address, pair.decode.instance.zmq_address
    return f"___prefill_addr_{prefill}___decode_addr_{decode}_{exchange_id}"


def prefill_body(fields: Fields, api: Api, pair: Pair, mode: TransferMode) -> bytes:
    """The client's body, cut to one token, with the parameters of the prefill leg."""
    leg = {k: v for k, v in fields.items() if k not in _PREFILL_DROPS}
    _set_one_token(leg, api)
    leg["stream"] = FALSE
    leg["kv_transfer_params"] = msgspec.Raw(msgspec.json.encode(_prefill_params(pair, mode)))
    return join(leg)


def _set_one_token(leg: Fields, api: Api) -> None:
    if api is Api.RESPONSES:
        leg["max_output_tokens"] = ONE
        leg["ignore_eos"] = TRUE  # all that it takes of the three below
        return
    leg["max_tokens"] = ONE
    if "max_completion_tokens" in leg:
        leg["max_completion_tokens"] = ONE
    if api is Api.MESSAGES:  # Anthropic's shape has neither min_tokens nor n
        return
    # KV is handed over only by a request that ended by length (protocol c): mask EOS and stops.
    leg["min_tokens"] = ONE
    leg["ignore_eos"] = TRUE
    leg["n"] = ONE


def _prefill_params(pair: Pair, mode: TransferMode) -> dict[str, object]:
    params: dict[str, object] = {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "transfer_id": pair.transfer_id,
        "remote_engine_id": None,
        "remote_block_ids": None,
        "remote_dp_size": pair.decode.instance.dp_size,
        "remote_tp_size": pair.decode.instance.tp_size,
    }
    if mode is TransferMode.WRITE:
        params |= _address(pair.decode.instance)
    return params


def decode_body_write(fields: Fields, pair: Pair) -> bytes:
    """The client's body unchanged, with the parameters of a WRITE decode leg."""
    prefill = pair.prefill.instance
    params: dict[str, object] = {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "transfer_id": pair.transfer_id,
        "remote_engine_id": None,
        "remote_block_ids": None,
        "remote_dp_size": prefill.dp_size,
        "remote_tp_size": prefill.tp_size,
        "remote_dp_rank": pair.prefill_rank,
        # Each decode leg goes to one engine, so it is always the one that must notify.
        "is_request_leader": True,
    } | _address(prefill)
    return join(fields | {"kv_transfer_params": msgspec.Raw(msgspec.json.encode(params))})


def decode_body_read(fields: Fields, pair: Pair, handed_over: Fields) -> bytes:
    """The client's body unchanged, with what prefill handed over, and the sizes of prefill.

    `handed_over` is the `kv_transfer_params` object of prefill's answer, forwarded verbatim: its
    block ids may be huge. What an older engine left out is filled in from its registration.
    """
    prefill = pair.prefill.instance
    encode = msgspec.json.encode
    params: Fields = {k: msgspec.Raw(encode(v)) for k, v in _address(prefill).items()}
    params["remote_dp_rank"] = msgspec.Raw(encode(pair.prefill_rank))
    params["remote_block_ids"] = params["remote_engine_id"] = NULL
    params |= handed_over
    params["do_remote_prefill"] = TRUE
    params["do_remote_decode"] = FALSE
    params["remote_tp_size"] = msgspec.Raw(encode(prefill.tp_size))
    params["remote_dp_size"] = msgspec.Raw(encode(prefill.dp_size))
    params.setdefault("transfer_id", msgspec.Raw(encode(pair.transfer_id)))
    return join(fields | {"kv_transfer_params": msgspec.Raw(join(params))})


def _address(instance: Instance) -> dict[str, object]:
    return {
        "remote_host": instance.kv_host,
        "remote_handshake_port": instance.handshake_port,
        "remote_notify_port": instance.notify_port,
    }


def handed_over(answer: bytes) -> Fields | None:
    """The `kv_transfer_params` of prefill's whole answer; None: no KV was handed over.

    None also for an answer that is not JSON, or that says it freed its blocks (null parameters).
    """
    try:
        raw = split(answer).get("kv_transfer_params")
        params = split(bytes(raw)) if raw is not None else {}
    except ValueError:
        return None
    return params if bytes(params.get("do_remote_prefill", NULL)).strip() == b"true" else None
