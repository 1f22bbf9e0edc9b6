"""What an exchange leaves behind: records for the control process, the route receipt for the
client, the trail for the access log."""

from sidecar.exchange.answers import Answers
from sidecar.exchange.intake import Request
from sidecar.exchange.reasons import Reason
from sidecar.exchange.records import Placed, Refused
from sidecar.routing.instance import TransferMode
from sidecar.routing.slots import Target
from sidecar.wire.access_log import Trail, encode_trail
from sidecar.wire.paths import Api

_CLIENT_ID_MAX = 128
_MODEL_MAX = 128
"""characters of a model's name that are kept: a client may write anything there"""


def client_id(value: str) -> str:
    """The client's own request id if it is at most 128 visible ASCII characters, else nothing."""
    is_fine = 0 < len(value) <= _CLIENT_ID_MAX and all("!" <= c <= "~" for c in value)
    return value if is_fine else ""


def receipt(prefill: Target | None, decode: Target | None, shows_addresses: bool) -> dict[str, str]:
    """`prefill` and `decode` metadata, `name#rank`: the routes make response headers of them."""
    ends = {"prefill": prefill, "decode": decode}
    return {k: _label(target, shows_addresses) for k, target in ends.items() if target is not None}


def _label(target: Target, shows_addresses: bool) -> str:
    member = target.member
    return f"{member.instance.address if shows_addresses else member.name}#{target.dp_rank}"


def placed_record(
    answers: Answers,
    worker: int,
    api: Api | None,
    request: Request | None,
    mode: TransferMode | None,
    prefill: Target | None,
    decode: Target | None,
) -> Placed:
    return Placed(
        exchange=answers.exchange,
        request_id=answers.client or answers.exchange,
        worker=worker,
        api=_name(api),
        model=_model(request),
        is_streaming=request.is_streaming if request else False,
        mode=mode,
        prefill=prefill.slot if prefill else None,
        decode=decode.slot if decode else None,
        prompt_bytes=request.body_bytes if request else 0,
    )


def refused_record(
    exchange: str, api: Api | None, request: Request | None, reason: Reason
) -> Refused:
    return Refused(
        exchange=exchange,
        api=_name(api),
        model=_model(request),
        is_streaming=request.is_streaming if request else False,
        reason=reason,
    )


def _name(api: Api | None) -> str:
    return api.value if api else "other"


def _model(request: Request | None) -> str:
    return request.model_label[:_MODEL_MAX] if request else ""


def trail(record: Placed) -> str:
    """The `pd.rec` metadata of a placement: of its record what adopting it needs."""
    return encode_trail(Trail(**{name: getattr(record, name) for name in Trail.__struct_fields__}))
