"""The two legs of an exchange as HTTP: URLs, headers and bodies, from the placement and the
request.

Pure building; `machine` decides when each is sent.
"""

import msgspec

from sidecar.exchange.effects import StartPrefill
from sidecar.exchange.intake import Request
from sidecar.exchange.situation import Limits
from sidecar.exchange.transfer import Transfer
from sidecar.routing.instance import TransferMode
from sidecar.routing.slots import Placement, Slot, Target
from sidecar.wire import kv_transfer
from sidecar.wire.ext_proc import DESTINATION, STRIPPED, BodyReply, HeadersReply
from sidecar.wire.openai import join
from sidecar.wire.paths import SUFFIX, Api

_NOT_FORWARDED = frozenset(
    (
        "host", "content-length", "content-type", "transfer-encoding", "connection", "keep-alive",
        "te", "upgrade", "expect", "accept-encoding", "x-request-id", "proxy-connection",
        "proxy-authorization", "trailer", *STRIPPED,
    )
)  # fmt: skip
"""Hop-by-hop, set anew for the prefill leg, or not the client's to set."""

_PREFIXES_NOT_FORWARDED = (":", "x-envoy-", "x-pd-")


def are_in_series(api: Api, placement: Placement, limits: Limits) -> bool:
    """Whether decode is asked after prefill has answered: always where it pulls."""
    if placement.mode is TransferMode.READ:
        return True
    assert placement.prefill is not None
    assert placement.decode is not None
    ends = placement.prefill.member, placement.decode.member
    return kv_transfer.pushes_late(api, *ends, is_wanted=limits.writes_in_series)


def prefill_leg(
    request: Request,
    placement: Placement,
    pair: kv_transfer.Pair,
    limits: Limits,
    deadline: float,
    now: float,
    *,
    is_awaited: bool,
) -> StartPrefill:
    """The prefill leg: same API as the client's, one token, whole (protocol c).

    `deadline` and `now` are monotonic seconds. `is_awaited`: decode is asked at once, and waits.
    """
    target = placement.prefill
    assert target is not None
    headers = {
        name: value
        for name, value in request.headers.items()
        if name not in _NOT_FORWARDED
        and not name.startswith(_PREFIXES_NOT_FORWARDED)
        and value.isascii()
    }
    # The client's own, or none: what vLLM refuses for its type must be refused before prefill is
    # spent.
    if "content-type" in request.headers:
        headers["content-type"] = request.headers["content-type"]
    headers["x-request-id"] = kv_transfer.request_id(pair, request.exchange)
    headers |= _rank(target) | _authorization(limits)
    return StartPrefill(
        url=target.member.instance.base_url + SUFFIX[request.api],
        headers=headers,
        body=kv_transfer.prefill_body(request.fields, request.api, pair, placement.mode),
        timeout_s=deadline - now,
        body_timeout_s=limits.hold_body_timeout_s if is_awaited else None,
        transfer=_awaited_transfer(pair, now) if is_awaited else None,
    )


def _awaited_transfer(pair: kv_transfer.Pair, now: float) -> Transfer:
    return Transfer(
        transfer_id=pair.transfer_id,
        prefill=pair.prefill.instance.address,
        decode=Slot(pair.decode.instance.address, pair.decode_rank),
        since=now,
    )


def decode_leg(
    request: Request,
    placement: Placement,
    pair: kv_transfer.Pair,
    limits: Limits,
    handed_over: kv_transfer.HandedOver | None,
    metadata: dict[str, str],
) -> BodyReply:
    """The decode leg, for Envoy to send. `handed_over`: of prefill, if waited for."""
    target = placement.decode
    assert target is not None
    if placement.mode is TransferMode.WRITE:
        body = kv_transfer.decode_body_write(request.fields, pair, handed_over)
    else:
        assert handed_over is not None
        body = kv_transfer.decode_body_read(request.fields, pair, handed_over)
    request_id = kv_transfer.request_id(pair, request.exchange)
    reply = _to_instance(request, target, body, limits, metadata, request_id)
    return reply if placement.spare is None else _with_spare(reply, placement.spare)


def _with_spare(reply: BodyReply, spare: Target) -> BodyReply:
    """Envoy turns to the spare host if, and only if, the first cannot be connected to."""
    headers = dict(reply.set_headers)
    headers[DESTINATION] += f",{spare.member.endpoint}"
    headers["x-envoy-retry-on"] = "connect-failure"
    return msgspec.structs.replace(reply, set_headers=headers)


def aggregated_leg(
    request: Request, target: Target, limits: Limits, metadata: dict[str, str]
) -> BodyReply:
    """The whole request to one instance, without KV transfer."""
    return _to_instance(request, target, join(request.fields), limits, metadata, request.exchange)


def single_leg(
    exchange: str,
    path: str,
    target: Target,
    limits: Limits,
    metadata: dict[str, str],
    *,
    has_body: bool,
) -> HeadersReply | BodyReply:
    """A single-instance path to one instance, which spreads it over its ranks itself.

    `has_body`: it was placed by its body, which goes on as it came.
    """
    headers = _destination(target, path)
    headers["x-request-id"] = exchange
    headers |= _authorization(limits)
    if has_body:
        return BodyReply(body=None, set_headers=headers, metadata=metadata)
    return HeadersReply(set_headers=headers, metadata=metadata)


def _to_instance(
    request: Request,
    target: Target,
    body: bytes,
    limits: Limits,
    metadata: dict[str, str],
    request_id: str,
) -> BodyReply:
    headers = _destination(target, "/v1" + SUFFIX[request.api])
    headers["x-request-id"] = request_id
    headers |= _rank(target) | _authorization(limits)
    if request.is_streaming:
        headers["x-pd-answer"] = "stream"  # reaches the route with a stream's time limits
    return BodyReply(
        body=body, set_headers=headers, metadata=metadata, clears_route=request.is_streaming
    )


def _destination(target: Target, path: str) -> dict[str, str]:
    """The headers that make Envoy send a request to this instance, at this path."""
    return {
        DESTINATION: target.member.endpoint,
        ":path": path,
        ":authority": target.member.instance.address,
    }


def _rank(target: Target) -> dict[str, str]:
    rank = target.rank_header
    return {} if rank is None else {"x-data-parallel-rank": rank}


def _authorization(limits: Limits) -> dict[str, str]:
    key = limits.engine_api_key
    return {} if key is None else {"authorization": f"Bearer {key}"}
