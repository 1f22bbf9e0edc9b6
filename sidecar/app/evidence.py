"""What ended legs say of their instances: exchange and access log values to `Evidence` (design §4).

Knows no registry. What is the client's or our own doing is no evidence, in neither direction.
"""

from sidecar.exchange.reasons import Reason
from sidecar.routing.slots import Slot
from sidecar.routing.standing import Evidence, Failure

_PREFILL = {
    Reason.PREFILL_REFUSED: Failure.REFUSED,
    Reason.PREFILL_RESET: Failure.RESET,
    Reason.PREFILL_TIMEOUT: Failure.TIMEOUT,
    Reason.PREFILL_ERROR: Failure.ERROR,
}
_SERVED = (None, Reason.PREFILL_REJECTED)
"""it answered, if only that the request is wrong"""


def of_prefill(slot: Slot, reason: Reason | None, placed_at: float) -> Evidence | None:
    """A prefill leg that was not closed; `placed_at`: monotonic seconds."""
    failure = _PREFILL.get(reason) if reason is not None else None
    if failure is None and reason not in _SERVED:
        return None
    return Evidence(where=slot.address, failure=failure, placed_at=placed_at)
