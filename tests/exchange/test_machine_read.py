"""The exchange machine in READ: legs in series."""

import json
from collections.abc import Callable

import pytest

from sidecar.exchange.effects import (
    StartPrefill,
)
from sidecar.exchange.events import Event, PrefillAnswered
from sidecar.exchange.machine import Phase
from sidecar.exchange.reasons import Reason
from sidecar.exchange.records import Moved, Placed, PrefillEnded, Replied
from sidecar.exchange.situation import Limits
from sidecar.routing.instance import TransferMode
from sidecar.routing.slots import NoPlacement, Placement, Slot, every_slot
from tests.exchange.exchange_driver import (
    BODY,
    ID,
    PREFILL_OK,
    PREFILL_WITHOUT_KV,
    Driver,
    decode,
    headers,
    prefill,
    read_pair,
)
from tests.exchange.exchange_events import (
    ERROR_500,
    REFUSED,
    REJECTED,
    RESET,
    TIMEOUT,
    UNAVAILABLE,
    UNREACHABLE,
    reading,
    writing,
)

# --- READ


def test_read_sends_decode_when_prefill_has_handed_over() -> None:
    """Prefill first, alone; then decode with what it returned; the slot passes to the log."""
    driver = reading()
    assert [type(e) for e in driver.effects[-1:]] == [StartPrefill]
    assert len(driver.sent) == 1
    assert driver.exchange.phase is Phase.PREFILL
    driver.feed(PREFILL_OK)
    assert driver.body_reply.set_headers["x-gateway-destination-endpoint"] == "10.0.1.5:8000"
    params = json.loads(driver.body_reply.body)["kv_transfer_params"]
    assert params["remote_block_ids"] == [[1, 2]]
    assert driver.body_reply.clears_route
    assert driver.body_reply.set_headers["x-pd-answer"] == "stream"
    ended = PrefillEnded(exchange=ID, seconds=0.5, reason=None, has_kv=True)
    assert driver.prefill_ends == [ended]
    assert driver.replied == Replied(exchange=ID, is_handed_over=True)
    assert driver.has_ended


def test_read_dispatches_to_another_decode_slot_if_its_own_vanished() -> None:
    """The ledger hears of the move, the leg and the trail name the new slot."""
    moved = Placement(prefill(), decode(6, 1), TransferMode.READ)
    driver = Driver(read_pair(), confirms=moved).feed(headers(), BODY, PREFILL_OK)
    assert driver.records(Moved) == [Moved(exchange=ID, decode=Slot("10.0.1.6:8000", 1))]
    assert driver.body_reply.set_headers["x-gateway-destination-endpoint"] == "10.0.1.6:8000"
    assert driver.body_reply.set_headers["x-data-parallel-rank"] == "1"
    assert "10.0.1.6:8000" in driver.body_reply.metadata["rec"]
    assert driver.body_reply.metadata["decode"] == "d6#1"


def test_read_without_any_decode_slot_left_is_refused_and_gives_back() -> None:
    """503 `no_decode_instance` after prefill; both slots are free."""
    driver = Driver(read_pair(), confirms=NoPlacement("no_decode_instance"))
    driver.feed(headers(), BODY, PREFILL_OK)
    assert (driver.immediate.status, driver.reason) == (503, "no_decode_instance")
    assert driver.replied.reason is Reason.NO_DECODE_INSTANCE
    assert not driver.replied.is_handed_over


def test_read_prefill_without_kv_serves_the_request_whole() -> None:
    """The same prefill instance answers it, without parameters (design §6: recomputed)."""
    driver = reading(PREFILL_WITHOUT_KV)
    assert driver.body_reply.set_headers["x-gateway-destination-endpoint"] == "10.0.0.0:8000"
    assert b"kv_transfer_params" not in driver.body_reply.body
    again = driver.placed
    assert (again.mode, again.prefill, again.decode) == (None, Slot("10.0.0.0:8000", 1), None)
    assert len(driver.records(Placed)) == 2
    assert driver.replied.is_handed_over


@pytest.mark.parametrize(
    "failure", [RESET, REFUSED, UNREACHABLE, ERROR_500, PrefillAnswered(status=307, body=b"")]
)
def test_read_prefill_failure_is_tried_on_another_slot_with_a_fresh_transfer_id(
    failure: Event,
) -> None:
    """The failed slot is excluded, every rank of it if it could not be reached."""
    driver = reading(failure)
    first, second = (
        json.loads(leg.body)["kv_transfer_params"]["transfer_id"] for leg in driver.legs
    )
    assert first != second
    assert driver.legs[1].url.startswith("http://10.0.0.1:8000/")
    tried = driver.demands[1]
    assert tried is not None
    whole = every_slot(prefill().member.instance)
    is_whole = failure in (REFUSED, UNREACHABLE)
    assert tried.excluded == (whole if is_whole else frozenset({prefill().slot}))
    driver.feed(PREFILL_OK)
    assert len(driver.records(Placed)) == 2
    assert len(driver.prefill_ends) == 2
    assert driver.replied.is_handed_over


@pytest.mark.parametrize(
    ("failure", "status", "reason"),
    [
        (RESET, 502, "prefill_reset"),
        (REFUSED, 502, "prefill_refused"),
        (UNREACHABLE, 502, "prefill_unreachable"),
        (UNAVAILABLE, 503, "prefill_unavailable"),
        (ERROR_500, 502, "prefill_error"),
    ],
)
def test_read_gives_up_when_the_attempts_are_used_up(
    failure: Event, status: int, reason: str
) -> None:
    """The last failure is the answer, and every slot is given back."""
    driver = reading(failure, failure)
    assert (driver.immediate.status, driver.reason) == (status, reason)
    assert len(driver.legs) == 2
    assert driver.replied == Replied(exchange=ID, is_handed_over=False, reason=Reason(reason))


def test_a_retry_that_finds_no_slot_says_why_prefill_failed() -> None:
    """502 of the failure: `no_prefill_instance` would be wrong while one is there."""
    driver = Driver(read_pair(), NoPlacement("no_prefill_instance"))
    driver.feed(headers(), BODY, RESET)
    assert (driver.immediate.status, driver.reason) == (502, "prefill_reset")
    assert driver.replied.reason is Reason.PREFILL_RESET
    gone = Driver(read_pair(), NoPlacement("no_decode_instance")).feed(headers(), BODY, RESET)
    assert gone.reason == "no_decode_instance"


def test_the_prefill_limit_is_for_all_attempts_together() -> None:
    """A second attempt gets what is left of it, and none starts when nothing is."""
    driver = Driver(read_pair(), read_pair(1), limits=Limits(prefill_timeout_s=10))
    driver.feed(headers(), BODY)
    driver.now += 7
    driver.feed(RESET)
    assert [leg.timeout_s for leg in driver.legs] == [10, 3]
    late = Driver(read_pair(), read_pair(1), limits=Limits(prefill_timeout_s=10))
    late.feed(headers(), BODY)
    late.now += 10
    late.feed(RESET)
    assert late.reason == "prefill_reset"
    assert len(late.legs) == 1


def test_a_prefill_time_out_is_not_tried_again() -> None:
    """504 at once: the whole limit is used up."""
    driver = reading(TIMEOUT)
    assert (driver.immediate.status, driver.reason) == (504, "prefill_timeout")
    assert len(driver.legs) == 1


@pytest.mark.parametrize("ways", [reading, writing])
def test_a_4xx_of_prefill_passes_byte_for_byte(ways: Callable[..., Driver]) -> None:
    """Status, body and content type are the engine's; no retry; decode is aborted by the reply."""
    driver = ways(REJECTED)
    assert driver.immediate.status == 400
    assert driver.immediate.body == REJECTED.body
    assert driver.immediate.headers["content-type"] == "application/json; x=1"
    assert driver.immediate.metadata["reply"] == "prefill_rejected"
    assert len(driver.legs) == 1
    assert driver.replied.reason is Reason.PREFILL_REJECTED
