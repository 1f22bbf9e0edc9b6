"""Events of the exchange tests, and exchanges that have come so far."""

import json

from sidecar.exchange.events import Event, PrefillAnswered, PrefillFailed
from sidecar.exchange.reasons import Reason
from sidecar.wire.ext_proc import (
    ResponseHeaders,
)
from tests.exchange.exchange_driver import (
    BODY,
    ID,
    Driver,
    headers,
    nixl_pair,
    read_pair,
    write_pair,
)

OK, NOT_FOUND = ResponseHeaders(200), ResponseHeaders(404)
RESET = PrefillFailed(reason=Reason.PREFILL_RESET, seconds=0.1)
REFUSED = PrefillFailed(reason=Reason.PREFILL_REFUSED, seconds=0.1)
UNREACHABLE = PrefillFailed(reason=Reason.PREFILL_UNREACHABLE, seconds=5.0)
TIMEOUT = PrefillFailed(reason=Reason.PREFILL_TIMEOUT, seconds=9.0)
TX = f"tx-{ID}-1"
UNAVAILABLE = PrefillAnswered(status=503, body=b"Generation is paused.", seconds=0.1)
CANNOT = PrefillAnswered(status=501, body=b'{"error":{"code":501}}', seconds=0.1)
ERROR_500 = PrefillAnswered(status=500, body=b"oops", seconds=0.1)
REJECTED = PrefillAnswered(
    status=400,
    body=b'{"error" : {"message":"\\u00e4"}}',
    headers={"content-type": "application/json; x=1", "retry-after": "7"},
)


def reading(*more: Event, **what: object) -> Driver:
    """A READ exchange with prefill under way, then `more`."""
    return Driver(read_pair(), read_pair(1), **what).feed(headers(), BODY, *more)


def pulling(*more: Event, **what: object) -> Driver:
    """An exchange of engines with NIXL with prefill under way, then `more`."""
    return Driver(nixl_pair(), nixl_pair(1), **what).feed(headers(), BODY, *more)


def writing(*more: Event, **what: object) -> Driver:
    """A WRITE exchange with both legs under way, then `more`."""
    return Driver(write_pair(), **what).feed(headers(), BODY, *more)


def transfer_ids(driver: Driver) -> list[str]:
    return [json.loads(leg.body)["kv_transfer_params"]["transfer_id"] for leg in driver.legs]
