"""What happens to an exchange, beside Envoy's own messages and the answers to `Place`. Values
only."""

import msgspec

from sidecar.exchange.reasons import Reason
from sidecar.routing.slots import NoPlacement, Placement
from sidecar.wire.ext_proc import RequestBody, RequestHeaders, ResponseHeaders, Unexpected


class PrefillAnswered(msgspec.Struct, frozen=True, kw_only=True):
    """Prefill's HTTP answer."""

    status: int
    body: bytes | None
    """None: a 2xx whose body was not whole within `body_timeout_s`"""
    headers: dict[str, str] = {}
    """those that are for the client, names in lower case"""
    seconds: float = 0.0


class PrefillFailed(msgspec.Struct, frozen=True, kw_only=True):
    """No HTTP answer. `reason` is one of PREFILL_REFUSED, _UNREACHABLE, _RESET, _TIMEOUT."""

    reason: Reason
    seconds: float = 0.0


class ClientLeft(msgspec.Struct, frozen=True):
    """Envoy ended the stream because the client (or Envoy's own limit) ended the request."""

    prefill: PrefillAnswered | PrefillFailed | None = None
    """how the prefill leg had ended just before, if nobody had taken that up yet"""


class Broke(msgspec.Struct, frozen=True):
    """The driver failed, or this package did: a bug, of which the client hears as an error 500."""


Event = (
    RequestHeaders
    | RequestBody
    | ResponseHeaders
    | Unexpected
    | Placement
    | NoPlacement
    | PrefillAnswered
    | PrefillFailed
    | ClientLeft
    | Broke
)
