"""What ended legs say of their instances: exchange and access log values to `Evidence` (design §4).

Knows no registry. What is the client's or our own doing is no evidence, in neither direction.
"""

from sidecar.exchange.reasons import Reason
from sidecar.routing.instance import TransferMode
from sidecar.routing.slots import Slot
from sidecar.routing.standing import Evidence, Failure
from sidecar.wire.access_log import Attempt, Entry

_PREFILL = {
    Reason.PREFILL_REFUSED: Failure.REFUSED,
    # Not refused: the backlog of an engine that lives may overflow in a burst.
    Reason.PREFILL_UNREACHABLE: Failure.TIMEOUT,
    Reason.PREFILL_RESET: Failure.RESET,
    Reason.PREFILL_TIMEOUT: Failure.TIMEOUT,
    Reason.PREFILL_ERROR: Failure.ERROR,
}
_SERVED = (None, Reason.PREFILL_REJECTED)
"""it answered, if only that the request is wrong"""
WHOLE = 0.9
"""the share of the limit from which on a leg is held to have had all of it; of what an earlier
attempt left, no engine can be blamed that it was not enough"""


def of_prefill(
    slot: Slot, reason: Reason | None, placed_at: float, seconds: float, limit_s: float
) -> Evidence | None:
    """A prefill leg that was not closed. `placed_at`: monotonic seconds; `seconds`: how long it
    took; `limit_s`: of all attempts together."""
    failure = _PREFILL.get(reason) if reason is not None else None
    if failure is None and reason not in _SERVED:
        return None
    if reason is Reason.PREFILL_TIMEOUT and seconds < WHOLE * limit_s:
        return None
    return Evidence(where=slot.address, failure=failure, placed_at=placed_at)


_BROKEN = frozenset(("UC", "UR", "UPE"))
_LATE = frozenset(("UT", "SI"))
_NO_SOCKET = (
    "Cannot assign requested address",
    "Too many open files",
    "No buffer space available",
    "Cannot allocate memory",
)
"""A connect that failed so never left this machine (strerror's words, in Envoy's entry)."""
_CONNECT_TIMED_OUT = "Connection timed out"
"""The kernel gave up; where Envoy's own limit ended it, there are no words at all."""
_NO_FAULT = (501, 503)
"""501 is vLLM's word for what the model cannot do, so the request's fault. 503 may be the retryable
`engine_paused`; the 503 of a dead engine is seen by the probe."""


def of_log(log: Entry | Attempt, now: float) -> Evidence | None:
    """What an entry of the access log says of the instance that it names, if anything."""
    return _of_attempt(log, now) if isinstance(log, Attempt) else _of_answer(log, now)


def _of_attempt(attempt: Attempt, now: float) -> Evidence | None:
    failure: Failure | None = None
    if "UF" in attempt.flags:
        failure = _of_connect(attempt.failure)
    elif attempt.flags & _BROKEN:
        failure = Failure.RESET
    if failure is None:
        return None
    return Evidence(where=attempt.upstream, failure=failure, placed_at=now - attempt.took_s)


def _of_connect(failure: str) -> Failure | None:
    if any(words in failure for words in _NO_SOCKET):
        return None
    return Failure.TIMEOUT if not failure or _CONNECT_TIMED_OUT in failure else Failure.REFUSED


def _of_answer(entry: Entry, now: float) -> Evidence | None:
    """The end of an exchange: the engine's own answer, or that not a byte of one came in time.

    That is not in the attempt's entry, which does not know the mode: in WRITE decode waits for
    prefill's push, and prefill may be dead. All else that Envoy says of a failure is there."""
    if not entry.is_end or not entry.upstream or entry.reply:
        return None
    placed_at = now - entry.lasted_s  # or later: the clock began before prefill
    if entry.flags & _LATE and entry.first_byte_s is None:
        # After the first byte it may be the client that does not read.
        if entry.trail is not None and entry.trail.mode is TransferMode.WRITE:
            return None
        return Evidence(where=entry.upstream, failure=Failure.TIMEOUT, placed_at=placed_at)
    if entry.flags or not entry.is_engines or entry.status in _NO_FAULT:
        return None
    failure = Failure.ERROR if entry.status >= 500 else None
    return Evidence(where=entry.upstream, failure=failure, placed_at=placed_at)
