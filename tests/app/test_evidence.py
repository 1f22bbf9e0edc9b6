"""What is held against an instance, what speaks for it, and what says nothing of it."""

import pytest

from sidecar.app.evidence import of_prefill
from sidecar.exchange.reasons import Reason
from sidecar.routing.slots import Slot
from sidecar.routing.standing import Evidence, Failure

P = Slot("10.0.0.1:8000", 2)


@pytest.mark.parametrize(
    ("reason", "failure"),
    [
        (Reason.PREFILL_REFUSED, Failure.REFUSED),
        (Reason.PREFILL_RESET, Failure.RESET),
        (Reason.PREFILL_TIMEOUT, Failure.TIMEOUT),
        (Reason.PREFILL_ERROR, Failure.ERROR),
        (Reason.PREFILL_REJECTED, None),
        (None, None),
    ],
)
def test_a_prefill_leg_that_ended(reason: Reason | None, failure: Failure | None) -> None:
    """A 4xx is an answer: the instance served. The slot's rank plays no part."""
    expected = Evidence(where=P.address, failure=failure, placed_at=7.0)
    assert of_prefill(P, reason, 7.0) == expected


@pytest.mark.parametrize("reason", [Reason.INTERNAL, Reason.DRAINING, Reason.BODY_INVALID])
def test_our_own_faults_say_nothing_of_the_instance(reason: Reason) -> None:
    """In neither direction."""
    assert of_prefill(P, reason, 7.0) is None
