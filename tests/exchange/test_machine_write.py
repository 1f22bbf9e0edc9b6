"""The exchange machine in WRITE: both legs at once."""

import json

import pytest

from sidecar.exchange.effects import (
    ClosePrefill,
    EndTransfer,
    FailTransfer,
)
from sidecar.exchange.events import Broke, ClientLeft, Event, PrefillAnswered, PrefillFailed
from sidecar.exchange.machine import Phase
from sidecar.exchange.reasons import Reason
from sidecar.exchange.records import PrefillEnded, Replied, Spare
from sidecar.routing.instance import TransferMode
from sidecar.routing.slots import Placement
from sidecar.wire.ext_proc import (
    BodyReply,
    PassReply,
    ResponseHeaders,
)
from tests.exchange.exchange_driver import (
    ID,
    PREFILL_OK,
    PREFILL_WITHOUT_KV,
    decode,
    prefill,
)
from tests.exchange.exchange_events import (
    CANNOT,
    ERROR_500,
    NOT_FOUND,
    OK,
    REFUSED,
    REJECTED,
    RESET,
    TIMEOUT,
    TX,
    UNAVAILABLE,
    UNREACHABLE,
    reading,
    writing,
)

# --- WRITE


def test_write_dispatches_both_legs_at_once() -> None:
    """Decode's body goes to Envoy beside the prefill leg; the stream stays open."""
    driver = writing()
    assert len(driver.legs) == 1
    params = json.loads(driver.body_reply.body)["kv_transfer_params"]
    assert params["transfer_id"] in driver.legs[0].body.decode()
    assert driver.exchange.phase is Phase.DECODE
    assert driver.legs[0].body_timeout_s == 1.0
    assert not driver.has_ended


def test_write_prefill_first_then_decode_lets_the_answer_go_at_once() -> None:
    """Decode's headers need not be held when prefill is known."""
    driver = writing(PREFILL_OK)
    assert not driver.has_ended
    driver.feed(OK)
    assert isinstance(driver.sent[-1], PassReply)
    assert driver.replied.is_handed_over


def test_write_decode_first_holds_its_headers_until_prefill_is_known() -> None:
    """A 2xx waits; the client sees it only after prefill's own 2xx."""
    driver = writing(OK)
    assert driver.exchange.phase is Phase.HELD
    assert not isinstance(driver.sent[-1], PassReply)
    driver.feed(PREFILL_OK)
    assert isinstance(driver.sent[-1], PassReply)
    assert driver.replied.is_handed_over


def test_write_lets_go_when_prefills_body_is_late() -> None:
    """A 2xx whose body is not whole in time counts as good."""
    driver = writing(OK, PrefillAnswered(status=200, body=None))
    assert isinstance(driver.sent[-1], PassReply)


@pytest.mark.parametrize(
    "event",
    [
        *(ResponseHeaders(status) for status in (199, 300, 404, 503, 504)),
        *(
            ResponseHeaders(503, reason)
            for reason in ("decode_refused", "instance_gone", "overloaded")
        ),
    ],
)
def test_write_decode_that_is_not_2xx_passes_at_once_and_closes_prefill(event: Event) -> None:
    """The client gets decode's own answer, or hears that it was not reached; prefill is aborted,
    for nothing waits."""
    driver = writing(event)
    assert isinstance(driver.sent[-1], PassReply)
    assert ClosePrefill() in driver.effects
    assert EndTransfer(f"tx-{ID}-1", is_answered=False) in driver.effects
    assert driver.has_ended
    assert driver.prefill_ends == [PrefillEnded(exchange=ID, seconds=None, reason=None)]
    assert driver.replied.is_handed_over


def test_write_decode_that_is_not_2xx_after_prefill_has_nothing_to_close() -> None:
    """Prefill is over; only the answer goes."""
    driver = writing(PREFILL_OK, NOT_FOUND)
    assert ClosePrefill() not in driver.effects
    assert isinstance(driver.sent[-1], PassReply)


@pytest.mark.parametrize("before", [(), (OK,)])
@pytest.mark.parametrize(
    ("failure", "status", "reason"),
    [
        (RESET, 502, "prefill_reset"),
        (TIMEOUT, 504, "prefill_timeout"),
        (ERROR_500, 502, "prefill_error"),
        (PREFILL_WITHOUT_KV, 502, "prefill_without_kv"),
    ],
)
def test_write_prefill_failure_answers_the_client_and_aborts_decode(
    before: tuple[Event, ...], failure: Event, status: int, reason: str
) -> None:
    """An ImmediateResponse whether or not decode has answered; no retry once decode was sent."""
    driver = writing(*before, failure)
    assert (driver.immediate.status, driver.reason) == (status, reason)
    assert len(driver.legs) == 1
    assert driver.replied == Replied(exchange=ID, is_handed_over=False, reason=Reason(reason))


@pytest.mark.parametrize(
    ("failure", "transfer"),
    [
        (REFUSED, FailTransfer(TX, is_certain=True)),
        (UNREACHABLE, FailTransfer(TX, is_certain=True)),
        (REJECTED, FailTransfer(TX, is_certain=True)),
        (CANNOT, FailTransfer(TX, is_certain=True)),
        (UNAVAILABLE, FailTransfer(TX, is_certain=False)),
        (RESET, FailTransfer(TX, is_certain=False)),
        (TIMEOUT, FailTransfer(TX, is_certain=False)),
        (ERROR_500, FailTransfer(TX, is_certain=False)),
        (PREFILL_OK, EndTransfer(TX, is_answered=True)),
        (PREFILL_WITHOUT_KV, EndTransfer(TX, is_answered=True)),
    ],
)
@pytest.mark.parametrize(
    "before", [(), (OK,), (ClientLeft(),), (ResponseHeaders(504, "decode_timeout"),)]
)
def test_write_says_whether_decode_will_get_its_blocks(
    before: tuple[Event, ...], failure: Event, transfer: object
) -> None:
    """Prefill's failure is told once, also when the client has gone: certain only where prefill
    never began; what prefill answered with 200 it pushes, with KV parameters or without."""
    driver = writing(*before, failure)
    ends = [e for e in driver.effects if isinstance(e, EndTransfer | FailTransfer)]
    assert ends == [transfer]
    assert driver.has_ended == (driver.exchange.phase is not Phase.DECODE_ALONE)


@pytest.mark.parametrize("before", [(), (OK,)])
def test_write_prefill_goes_on_without_its_client(before: tuple[Event, ...]) -> None:
    """Closed, it would leave decode's blocks taken for good: its slot is held until it ends."""
    driver = writing(*before, ClientLeft())
    assert driver.exchange.phase is Phase.PREFILL_ALONE
    assert ClosePrefill() not in driver.effects
    assert driver.replied.is_prefill_running
    assert not driver.prefill_ends
    assert driver.exchange.open_record is not None
    driver.feed(ClientLeft(), PREFILL_OK)
    assert driver.has_ended
    assert len(driver.prefill_ends) == 1
    assert driver.exchange.open_record is None


@pytest.mark.parametrize(
    "event", [ResponseHeaders(504, "decode_timeout"), ResponseHeaders(503, "decode_reset")]
)
def test_write_a_decode_that_envoy_gave_up_leaves_prefill_running(event: Event) -> None:
    """No answer of decode's own: it may still wait for prefill's push."""
    driver = writing(event)
    assert isinstance(driver.sent[-1], PassReply)
    assert driver.exchange.phase is Phase.PREFILL_ALONE
    assert driver.replied.is_handed_over
    assert driver.replied.is_prefill_running


def test_write_a_leg_that_is_lost_without_its_client_fails_the_transfer() -> None:
    """A bug, or the end of the process: nobody knows whether prefill pushes."""
    driver = writing(ClientLeft(), Broke())
    assert driver.effects[-1] == FailTransfer(TX, is_certain=False)
    assert driver.has_ended


def test_read_names_a_second_host_for_a_refused_connection_only() -> None:
    """Envoy's list has both, and retries nothing but a failed connect; the record has the spare."""
    spare = decode(6)
    placement = Placement(prefill(), decode(), TransferMode.READ, spare)
    driver = reading(PREFILL_OK, confirms=placement)
    sent = driver.body_reply.set_headers
    assert sent["x-gateway-destination-endpoint"] == "10.0.1.5:8000,10.0.1.6:8000"
    assert sent["x-envoy-retry-on"] == "connect-failure"
    assert driver.replied.spare == Spare(spare.slot, "10.0.1.6:8000")


def test_without_a_second_host_envoy_retries_nothing() -> None:
    """One destination, no retry header."""
    sent = reading(PREFILL_OK).body_reply.set_headers
    assert sent["x-gateway-destination-endpoint"] == "10.0.1.5:8000"
    assert "x-envoy-retry-on" not in sent


@pytest.mark.parametrize(
    ("late", "ended"),
    [
        (PREFILL_OK, PrefillEnded(exchange=ID, seconds=0.5, reason=None, has_kv=True)),
        (PREFILL_WITHOUT_KV, PrefillEnded(exchange=ID, seconds=0.5, reason=None)),
        (RESET, PrefillEnded(exchange=ID, seconds=0.1, reason=Reason.PREFILL_RESET)),
        (None, PrefillEnded(exchange=ID, seconds=None, reason=None)),
    ],
)
def test_read_a_client_that_leaves_as_prefill_ends_leaves_its_end_on_record(
    late: PrefillAnswered | PrefillFailed | None, ended: PrefillEnded
) -> None:
    """KV that was committed is known to lie there; nothing is dispatched or retried."""
    driver = reading(ClientLeft(prefill=late))
    assert driver.prefill_ends == [ended]
    assert not any(isinstance(reply, BodyReply) for reply in driver.sent)
    assert len(driver.legs) == 1
    assert driver.replied == Replied(exchange=ID, is_handed_over=False, phase="prefill")
