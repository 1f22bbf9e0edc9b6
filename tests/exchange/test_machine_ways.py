"""The exchange machine's table: every illegal event, and what holds on all ways."""

from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.exchange.effects import (
    Place,
)
from sidecar.exchange.events import Broke, ClientLeft, Event, PrefillAnswered
from sidecar.exchange.machine import _TABLE, IllegalEvent, Phase
from sidecar.exchange.records import Placed, PrefillEnded, Refused, Replied
from sidecar.exchange.situation import Limits
from sidecar.routing.instance import TransferMode, Version
from sidecar.routing.slots import NoPlacement, Placement
from sidecar.wire.ext_proc import (
    BodyReply,
    HeadersReply,
    ImmediateReply,
    PassReply,
    RequestBody,
    ResponseHeaders,
    Unexpected,
)
from tests.exchange.exchange_driver import (
    BODY,
    PREFILL_OK,
    PREFILL_WITHOUT_KV,
    READY,
    RESPONSES,
    Driver,
    decode,
    headers,
    prefill,
    read_pair,
    write_pair,
)
from tests.exchange.exchange_events import (
    ERROR_500,
    NOT_FOUND,
    OK,
    REFUSED,
    REJECTED,
    RESET,
    TIMEOUT,
    UNAVAILABLE,
    reading,
    transfer_ids,
    writing,
)

# --- the table


def _at_place() -> Driver:
    driver = Driver().feed(headers())
    assert driver.exchange.handle(BODY, 0)[0] == Place(driver.exchange._demand())
    return driver


def _at_confirm() -> Driver:
    driver = reading()
    driver.exchange.handle(PREFILL_OK, 0)
    return driver


AT: dict[Phase, Callable[[], Driver]] = {
    Phase.HEADERS: lambda: Driver(),
    Phase.BODY: lambda: Driver().feed(headers()),
    Phase.PLACING: _at_place,
    Phase.PREFILL: lambda: reading(),
    Phase.CONFIRM: _at_confirm,
    Phase.DECODE: lambda: writing(),
    Phase.DECODE_ALONE: lambda: writing(PREFILL_OK),
    Phase.HELD: lambda: writing(OK),
    Phase.PREFILL_ALONE: lambda: writing(ClientLeft()),
    Phase.DONE: lambda: reading(PREFILL_OK),
}
EVENTS: list[Event] = [
    headers(),
    BODY,
    OK,
    Unexpected("response_body"),
    read_pair(),
    NoPlacement("no_decode_instance"),
    PREFILL_OK,
    RESET,
]


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_is_legal_exactly_where_the_table_names_it(phase: Phase, event: Event) -> None:
    """Anywhere else it raises IllegalEvent, and the exchange can still be ended."""
    driver = AT[phase]()
    exchange = driver.exchange
    assert exchange.phase is phase
    if (phase, type(event)) in _TABLE:
        assert exchange.handle(event, 0) is not None
        return
    with pytest.raises(IllegalEvent):
        exchange.handle(event, 0)
    assert exchange.phase is phase
    exchange.handle(ClientLeft(), 0)
    exchange.handle(Broke(), 0)
    assert exchange.phase is Phase.DONE


# --- what holds on every way

placements = st.sampled_from(
    [
        read_pair(0),
        read_pair(1),
        write_pair(0),
        write_pair(1),
        Placement(prefill(), None, TransferMode.READ),
        Placement(None, decode(), TransferMode.WRITE),
        Placement(prefill(version=Version(0, 25)), decode(), TransferMode.READ),
        NoPlacement("no_prefill_instance"),
        NoPlacement("no_decode_instance"),
    ]
)
steps = st.sampled_from(
    [
        BODY,
        RequestBody(b"[]"),
        RequestBody(b'{"n":3}'),
        OK,
        NOT_FOUND,
        Unexpected("response_body"),
        PREFILL_OK,
        PREFILL_WITHOUT_KV,
        PrefillAnswered(status=200, body=None),
        PrefillAnswered(status=200, body=b"not json"),
        REJECTED,
        ERROR_500,
        RESET,
        REFUSED,
        TIMEOUT,
        UNAVAILABLE,
        ResponseHeaders(504, "decode_timeout"),
        ResponseHeaders(504),
        ClientLeft(),
        ClientLeft(prefill=PREFILL_OK),
        ClientLeft(prefill=REFUSED),
        Broke(),
    ]
)


@given(
    first=st.sampled_from([headers(), headers("/tokenize"), headers(RESPONSES), BODY]),
    events=st.lists(steps, max_size=12),
    picks=st.lists(placements, min_size=6, max_size=6),
    confirms=st.sampled_from([None, read_pair(0, 7), NoPlacement("no_decode_instance")]),
    attempts=st.integers(1, 4),
)
def test_on_every_way_what_is_taken_is_given_back_once(
    first: Event,
    events: list[Event],
    picks: list[Placement | NoPlacement],
    confirms: Placement | NoPlacement | None,
    attempts: int,
) -> None:
    """One release for what was placed, one end for each prefill leg, one reply a phase."""
    limits = Limits(prefill_attempts=attempts)
    driver = Driver(*picks, confirms=confirms, limits=limits, situation=READY)
    for event in [first, *events]:
        driver.now += 1
        with suppress(IllegalEvent):
            driver.feed(event)
        kinds = [type(reply) for reply in driver.sent]
        assert kinds.count(HeadersReply) <= 1
        assert kinds.count(BodyReply) <= 1
        assert kinds.count(PassReply) + kinds.count(ImmediateReply) <= 1
        assert len(driver.legs) <= attempts
        if ImmediateReply in kinds or PassReply in kinds:
            assert driver.is_over, "the last reply ends the exchange"
            assert kinds[-1] in (ImmediateReply, PassReply)
    driver.feed(ClientLeft())
    assert driver.is_over
    driver.feed(*([Broke()] if not driver.has_ended else []))
    assert driver.exchange.open_record is None
    assert not driver.awaited, "decode waits for what nobody answers for"
    assert len(driver.records(Replied)) == (1 if driver.records(Placed) else 0)
    assert len(driver.prefill_ends) == len(driver.legs)
    assert len(driver.records(Refused)) <= (0 if driver.records(Placed) else 1)
    assert len(set(transfer_ids(driver))) == len(driver.legs)
    if driver.records(Replied):
        after = driver.notes[driver.notes.index(driver.replied) + 1 :]
        assert [type(r) for r in after] == [PrefillEnded] * driver.replied.is_prefill_running
