"""What an exchange leaves behind: records for the control process, the route receipt for the
client, the trail for the access log."""

import msgspec

from sidecar.exchange.answers import Answers
from sidecar.exchange.asked import Asked
from sidecar.exchange.reasons import Reason
from sidecar.exchange.records import Placed, Refused
from sidecar.exchange.situation import Limits
from sidecar.routing.instance import TransferMode
from sidecar.routing.slots import Target
from sidecar.wire.access_log import Trail, encode_trail

_CLIENT_ID_MAX = 128


def client_id(value: str) -> str:
    """The client's own request id if it is at most 128 visible ASCII characters, else nothing."""
    is_fine = 0 < len(value) <= _CLIENT_ID_MAX and all("!" <= c <= "~" for c in value)
    return value if is_fine else ""


def with_route(
    answers: Answers, limits: Limits, prefill: Target | None, decode: Target | None
) -> Answers:
    """The answers with the route receipt, `name#rank` of those that were asked, if it may be shown:
    routes make response headers of the metadata."""
    if not limits.shows_route:
        return answers
    ends = {"prefill": prefill, "decode": decode}
    shows_addresses = limits.shows_addresses
    route = {k: _label(end, shows_addresses) for k, end in ends.items() if end is not None}
    return msgspec.structs.replace(answers, route=route)


def _label(target: Target, shows_addresses: bool) -> str:
    member = target.member
    return f"{member.instance.address if shows_addresses else member.name}#{target.dp_rank}"


def placed_record(
    answers: Answers,
    worker: int,
    asked: Asked,
    mode: TransferMode | None,
    prefill: Target | None,
    decode: Target | None,
) -> Placed:
    return Placed(
        exchange=answers.exchange,
        request_id=answers.client or answers.exchange,
        worker=worker,
        api=asked.api_label,
        model=asked.model,
        is_streaming=asked.is_streaming,
        mode=mode,
        prefill=prefill.slot if prefill else None,
        decode=decode.slot if decode else None,
        prompt_bytes=asked.body_bytes,
    )


def refused_record(exchange: str, asked: Asked, reason: Reason) -> Refused:
    return Refused(
        exchange=exchange,
        api=asked.api_label,
        model=asked.model,
        is_streaming=asked.is_streaming,
        reason=reason,
    )


def trail(record: Placed) -> str:
    """The `pd.rec` metadata of a placement: of its record what adopting it needs."""
    return encode_trail(
        Trail(
            worker=record.worker,
            api=record.api,
            model=record.model,
            is_streaming=record.is_streaming,
            mode=record.mode,
            prefill=record.prefill,
            decode=record.decode,
        )
    )
