"""The request bodies and ids of both legs, and what prefill's answer hands over (protocol b, c, g).

Pure values to bytes. Does not choose who serves; is given the two instances and ranks. The one door
to the connectors: each has its parameters in a module of its own.
"""

import msgspec

from sidecar.routing.instance import Connector, TransferMode
from sidecar.routing.view import Member
from sidecar.wire import moriio, nixl
from sidecar.wire.openai import FALSE, NULL, ONE, Fields, join, split
from sidecar.wire.paths import Api

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
    """The two ends of one transfer, of one connector."""

    prefill: Member
    prefill_rank: int
    decode: Member
    decode_rank: int
    transfer_id: str
    """unique for each attempt: engines with MoRI-IO remember ids for ever (protocol c)"""

    @property
    def connector(self) -> Connector:
        return self.prefill.instance.connector


class HandedOver(msgspec.Struct, frozen=True):
    """The `kv_transfer_params` of prefill's answer, by which decode gets the KV."""

    raw: msgspec.Raw
    """as they came, to the byte: block ids may be huge, and versions add keys"""
    fields: Fields


class OtherConnector(msgspec.Struct, frozen=True):
    """Prefill's answer is of another connector than the pool's. Decode must not get it."""

    connector: Connector
    key: str
    """of its parameters, which the pool's connector does not have"""


def can_name_each_other(api: Api, prefill: Member, decode: Member) -> bool:
    """False: this pair needs embedded addresses, and `/v1/responses` ignores the request id that
    carries them (protocol b)."""
    if api is not Api.RESPONSES or prefill.instance.connector is Connector.NIXL:
        return True
    return not moriio.embeds_addresses((prefill.version, decode.version))


def pushes_late(api: Api, prefill: Member, decode: Member, *, is_wanted: bool) -> bool:
    """WRITE: whether decode is asked after prefill has answered: if that is wanted, or only prefill
    can say on which rank it ran; and both engines can do it."""
    is_needed = is_wanted or moriio.may_run_on_another_rank(api, prefill)
    return is_needed and moriio.takes_late_decode(prefill, decode)


def request_id(pair: Pair, exchange_id: str) -> str:
    """The `X-Request-Id` of both legs; `exchange_id` is 32 lower-case hex."""
    if pair.connector is Connector.NIXL:
        return exchange_id
    return moriio.request_id(pair.prefill, pair.decode, exchange_id)


def prefill_body(fields: Fields, api: Api, pair: Pair, mode: TransferMode) -> bytes:
    """The client's body, cut to one token, with the parameters of the prefill leg."""
    leg = {k: v for k, v in fields.items() if k not in _PREFILL_DROPS}
    if api is Api.RESPONSES:
        leg["max_output_tokens"] = ONE
    else:
        leg["max_tokens"] = ONE
        if "max_completion_tokens" in leg:
            leg["max_completion_tokens"] = ONE
    if pair.connector is Connector.NIXL:
        nixl.allow_one_token(leg)
        params = nixl.PREFILL_PARAMS
    else:
        moriio.end_by_length(leg, api)
        params = moriio.prefill_params(pair.decode.instance, pair.transfer_id, mode)
    if api not in (Api.RESPONSES, Api.MESSAGES):  # their shapes have no `n`
        leg["n"] = ONE
    leg["stream"] = FALSE
    return _with_params(leg, msgspec.json.encode(params))


def decode_body_write(fields: Fields, pair: Pair, given: HandedOver | None = None) -> bytes:
    """The client's body unchanged, with the parameters of a WRITE decode leg; `given`: what prefill
    handed over, if it has answered."""
    prefill, rank = pair.prefill.instance, pair.prefill_rank
    if given is not None:
        rank = moriio.ran_on(given.fields, rank)
    params = moriio.decode_params_write(prefill, rank, pair.transfer_id)
    return _with_params(fields, msgspec.json.encode(params))


def decode_body_read(fields: Fields, pair: Pair, given: HandedOver) -> bytes:
    """The client's body unchanged, with what prefill handed over."""
    if pair.connector is Connector.NIXL:
        return _with_params(fields, bytes(given.raw))
    prefill = pair.prefill.instance
    params = moriio.decode_params_read(prefill, pair.prefill_rank, pair.transfer_id, given.fields)
    return _with_params(fields, join(params))


def _with_params(fields: Fields, params: bytes) -> bytes:
    return join(fields | {"kv_transfer_params": msgspec.Raw(params)})


def handed_over(answer: bytes, connector: Connector) -> HandedOver | OtherConnector | None:
    """What prefill's whole answer hands over in a pool of `connector`; None: no KV.

    None also for an answer that is not JSON, or that says it freed its blocks (null parameters).
    """
    try:
        raw = split(answer).get("kv_transfer_params")
        params = split(bytes(raw)) if raw is not None else {}
    except ValueError:
        return None
    if raw is None:
        return None
    other = _of_another(params, connector)
    if other is not None:
        return other
    is_given = bytes(params.get("do_remote_prefill", NULL)).strip() == b"true"
    return HandedOver(raw, params) if is_given else None


def _of_another(params: Fields, connector: Connector) -> OtherConnector | None:
    moriios, nixls = moriio.key_seen(params), nixl.key_seen(params)
    if connector is Connector.NIXL:
        return None if moriios is None else OtherConnector(Connector.MORIIO, moriios)
    if moriios is not None or nixls is None:
        return None
    return OtherConnector(Connector.NIXL, nixls)
