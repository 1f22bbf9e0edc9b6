"""What Envoy's log says of an end: the reason it had, and how the client saw it."""

import pytest

from sidecar.exchange.envoys_ends import outcome_of, reason_of
from sidecar.exchange.reasons import Outcome, Reason
from sidecar.wire.access_log import Entry


def log(status: int, *flags: str, exchange: str = "e", details: str = "") -> Entry:
    return Entry(
        exchange=exchange,
        is_end=True,
        status=status,
        flags=frozenset(flags),
        upstream="10.0.0.1:8000",
        trail=None,
        reply="",
        total_s=1.0,
        first_byte_s=0.5,
        details=details,
    )


@pytest.mark.parametrize(
    ("entry", "reason", "outcome"),
    [
        (log(200), None, Outcome.OK),
        (log(404, details="via_upstream"), None, Outcome.CLIENT_ERROR),
        (log(500, details="via_upstream"), None, Outcome.DECODE_FAILED),
        (log(503, details="via_upstream"), None, Outcome.DECODE_FAILED),
        (log(504, details="via_upstream"), None, Outcome.DECODE_FAILED),
        (log(200, "DC"), None, Outcome.CANCELLED),
        (log(200, "DR"), None, Outcome.CANCELLED),
        (log(0, "DC"), None, Outcome.CANCELLED),
        (log(0), None, Outcome.CANCELLED),
        (log(200, "SI"), Reason.DECODE_STALLED, Outcome.STALLED),
        (log(200, "UT"), Reason.DECODE_STALLED, Outcome.STALLED),
        (log(200, "UC"), Reason.DECODE_CUT, Outcome.DECODE_FAILED),
        (log(200, "UPE"), Reason.DECODE_CUT, Outcome.DECODE_FAILED),
        (log(504, "UT"), Reason.DECODE_TIMEOUT, Outcome.DECODE_FAILED),
        (log(504, "SI"), Reason.DECODE_TIMEOUT, Outcome.DECODE_FAILED),
        (log(504), Reason.WORKER_TIMEOUT, Outcome.REFUSED),
        (log(503, "UF"), Reason.DECODE_REFUSED, Outcome.DECODE_FAILED),
        (log(503, "UF", "URX"), Reason.DECODE_REFUSED, Outcome.DECODE_FAILED),
        (log(503, "UH"), Reason.INSTANCE_GONE, Outcome.DECODE_FAILED),
        (log(503, "UC"), Reason.DECODE_RESET, Outcome.DECODE_FAILED),
        (log(503, "UO"), Reason.OVERLOADED, Outcome.REFUSED),
        (log(503), Reason.NO_WORKER, Outcome.REFUSED),
        (log(503, "UH", exchange=""), Reason.NO_WORKER, Outcome.REFUSED),
        (log(503, "UO", exchange=""), Reason.OVERLOADED, Outcome.REFUSED),
        (log(503, "OM", exchange=""), Reason.OVERLOADED, Outcome.REFUSED),
        (log(503, exchange="", details="overload"), Reason.OVERLOADED, Outcome.REFUSED),
        (log(503, details="overload"), Reason.OVERLOADED, Outcome.REFUSED),
        (log(500), Reason.INTERNAL, Outcome.REFUSED),
        (log(408), Reason.UPLOAD_TIMEOUT, Outcome.CLIENT_ERROR),
        (log(413), Reason.BODY_TOO_LARGE, Outcome.CLIENT_ERROR),
    ],
)
def test_an_end_has_its_reason_and_outcome(
    entry: Entry, reason: Reason | None, outcome: Outcome
) -> None:
    """Envoy's own answers by status and flag, a broken stream by flag, an engine's answer by none;
    a client that left is nobody's failure."""
    assert reason_of(entry) is reason
    assert outcome_of(reason_of(entry), entry) is outcome


def test_the_sidecars_own_reason_goes_before_what_envoy_saw() -> None:
    """The client may leave while it is told."""
    assert outcome_of(Reason.PREFILL_RESET, log(200, "DC")) is Outcome.PREFILL_FAILED
