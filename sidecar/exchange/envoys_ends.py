"""How an exchange ended that the sidecar did not answer itself: what Envoy's log says of it."""

from sidecar.exchange.reasons import TABLE, Outcome, Reason
from sidecar.wire.access_log import Entry

_UNREACHED = {"UF": Reason.DECODE_REFUSED, "UH": Reason.INSTANCE_GONE}
_OVERLOADED = frozenset(("UO", "OM"))
_BROKEN = frozenset(("UC", "UR", "LR", "UPE", "URX"))
_LEFT = frozenset(("DC", "DR"))
_LATE = frozenset(("UT", "SI", "DT", "UMSDR"))


def reason_of(log: Entry) -> Reason | None:
    """Why Envoy refused the request or cut its answer; None: it did neither.

    The order is that of the listener's `local_reply_config`, which chose the client's words.
    """
    if log.flags & _LEFT or log.status == 0:
        return None
    if log.is_engines:
        return _cut(log)
    if log.status == 408:
        return Reason.UPLOAD_TIMEOUT
    if log.status == 413:
        return Reason.BODY_TOO_LARGE
    if log.status == 504:
        return Reason.DECODE_TIMEOUT if log.flags & _LATE else Reason.WORKER_TIMEOUT
    if log.status == 503:
        return _unavailable(log)
    return Reason.INTERNAL if log.status == 500 else None


def _unavailable(log: Entry) -> Reason:
    if log.flags & _OVERLOADED or log.details == "overload":
        return Reason.OVERLOADED
    if not log.exchange:
        return Reason.NO_WORKER  # it never came to an instance
    for flag, reason in _UNREACHED.items():
        if flag in log.flags:
            return reason
    return Reason.DECODE_RESET if log.flags & _BROKEN else Reason.NO_WORKER


def _cut(log: Entry) -> Reason | None:
    """The status line was the engine's: whatever came then could only be cut."""
    if log.flags & _LATE:
        return Reason.DECODE_STALLED
    return Reason.DECODE_CUT if log.flags & _BROKEN else None


def outcome_of(reason: Reason | None, log: Entry) -> Outcome:
    """How the client saw it end: by the reason, else by the engine's own answer."""
    if reason is not None:
        return TABLE[reason].outcome
    if log.flags & _LEFT or log.status == 0:
        return Outcome.CANCELLED
    if log.status >= 500:
        return Outcome.DECODE_FAILED
    return Outcome.CLIENT_ERROR if log.status >= 400 else Outcome.OK
