"""The exchange machine: every way through it, every illegal event, and what holds on all ways."""

import json
from collections.abc import Callable
from contextlib import suppress

import pytest
from exchange_driver import (
    BODY,
    ID,
    PREFILL_OK,
    PREFILL_WITHOUT_KV,
    READY,
    RESPONSES,
    WRITE,
    Driver,
    decode,
    headers,
    prefill,
    read_pair,
    write_pair,
)
from hypothesis import given
from hypothesis import strategies as st

from sidecar.exchange.effects import (
    ClosePrefill,
    EndTransfer,
    FailTransfer,
    Place,
    StartPrefill,
)
from sidecar.exchange.events import Broke, ClientLeft, Event, PrefillAnswered, PrefillFailed
from sidecar.exchange.machine import _TABLE, IllegalEvent, Phase
from sidecar.exchange.reasons import Reason
from sidecar.exchange.records import Moved, Placed, PrefillEnded, Refused, Replied, Spare
from sidecar.exchange.situation import Limits, Situation
from sidecar.routing.instance import Role, TransferMode, Version
from sidecar.routing.slots import NoPlacement, Placement, Slot, every_slot
from sidecar.wire.ext_proc import (
    BodyReply,
    HeadersReply,
    ImmediateReply,
    PassReply,
    RequestBody,
    ResponseHeaders,
    Unexpected,
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
REDIRECT = PrefillAnswered(status=307, body=b"", seconds=0.1)
REJECTED = PrefillAnswered(
    status=400, body=b'{"error" : {"message":"\\u00e4"}}', content_type="application/json; x=1"
)


def reading(*more: Event, **what: object) -> Driver:
    """A READ exchange with prefill under way, then `more`."""
    return Driver(read_pair(), read_pair(1), **what).feed(headers(), BODY, *more)


def writing(*more: Event, **what: object) -> Driver:
    """A WRITE exchange with both legs under way, then `more`."""
    return Driver(write_pair(), **what).feed(headers(), BODY, *more)


def transfer_ids(driver: Driver) -> list[str]:
    return [json.loads(leg.body)["kv_transfer_params"]["transfer_id"] for leg in driver.legs]


# --- the headers step


@pytest.mark.parametrize(
    ("situation", "reason"),
    [
        (Situation(is_draining=True, has_prefill=True, has_decode=True, models=()), "draining"),
        (
            Situation(is_draining=False, has_prefill=False, has_decode=True, models=()),
            "no_prefill_instance",
        ),
        (
            Situation(is_draining=False, has_prefill=True, has_decode=False, models=()),
            "no_decode_instance",
        ),
    ],
)
def test_a_pool_that_cannot_serve_refuses_at_the_headers(situation: Situation, reason: str) -> None:
    """503 with the reason and Retry-After before a byte of the body is asked for."""
    driver = Driver(situation=situation).feed(headers())
    assert (driver.immediate.status, driver.reason) == (503, reason)
    assert driver.immediate.headers["retry-after"] == "1"
    assert driver.refused.reason == reason
    assert driver.has_ended


@pytest.mark.parametrize(
    ("event", "status", "reason"),
    [
        (headers(is_last=True), 400, "body_missing"),
        (headers(content_encoding="gzip"), 415, "body_encoding"),
        (headers(content_length="101"), 413, "body_too_large"),
    ],
)
def test_a_body_that_cannot_be_taken_is_refused_at_the_headers(
    event: Event, status: int, reason: str
) -> None:
    """400, 415 and 413 in OpenAI's error shape."""
    driver = Driver(limits=Limits(max_body_bytes=100)).feed(event)
    assert (driver.immediate.status, driver.reason) == (status, reason)
    error = json.loads(driver.immediate.body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == reason


@pytest.mark.parametrize("length", ["100", "", "\xb2", "9" * 5000, "-1", "1_0"])
def test_a_content_length_that_is_within_or_unreadable_goes_on(length: str) -> None:
    """Only a readable length over the limit refuses: the body's own size is checked anyway."""
    driver = Driver(limits=Limits(max_body_bytes=100)).feed(headers(content_length=length))
    assert isinstance(driver.sent[0], HeadersReply)


def test_identity_is_an_encoding_that_passes() -> None:
    """`Content-Encoding: identity` is no encoding."""
    driver = Driver().feed(headers(content_encoding=" Identity "))
    assert isinstance(driver.sent[0], HeadersReply)


def test_the_headers_reply_names_the_exchange_and_asks_for_response_headers() -> None:
    """The id goes upstream and into the metadata at once; the client's own is kept for it."""
    driver = Driver().feed(headers(x_request_id="mine-7"))
    assert driver.sent == [
        HeadersReply(
            set_headers={"x-request-id": ID},
            metadata={"ex": ID, "client_id": "mine-7"},
            wants_response_headers=True,
        )
    ]


@pytest.mark.parametrize("sent", ["", "x" * 129, "a b", "\xe4", "a\tb"])
def test_a_client_id_that_is_not_visible_ascii_is_dropped(sent: str) -> None:
    """The answer then carries the exchange's own id."""
    driver = Driver().feed(headers(x_request_id=sent))
    reply = driver.sent[0]
    assert isinstance(reply, HeadersReply)
    assert reply.metadata["client_id"] == ID


def test_health_and_models_are_answered_by_the_sidecar() -> None:
    """200 from the pool's state, no placement, no record."""
    for path, body in (("/health", b""), ("/ping", b""), ("/v1/models?x=1", None)):
        driver = Driver().feed(headers(path, method="GET", is_last=True))
        assert driver.immediate.status == 200
        assert driver.immediate.metadata["reply"] == "own"
        assert driver.immediate.metadata["ex"] == ID
        assert driver.notes == []
        if body is not None:
            assert driver.immediate.body == body
        else:
            assert [m["id"] for m in json.loads(driver.immediate.body)["data"]] == ["m"]


def test_health_says_503_while_the_pool_cannot_serve() -> None:
    """The readiness that load balancers ask for."""
    draining = Situation(is_draining=True, has_prefill=True, has_decode=True, models=())
    driver = Driver(situation=draining).feed(headers("/health", method="GET", is_last=True))
    assert (driver.immediate.status, driver.reason) == (503, "draining")


@pytest.mark.parametrize("target", [prefill(), decode()])
def test_a_single_instance_path_is_placed_at_the_headers(target: object) -> None:
    """It goes to the instance picked, whatever its role, with the engines' key; its slot passes to
    the log."""
    is_prefill = target.member.instance.role is Role.PREFILL
    placement = Placement(target if is_prefill else None, None if is_prefill else target, WRITE)
    driver = Driver(placement, limits=Limits(engine_api_key="k")).feed(headers("/tokenize?a=b"))
    assert driver.demands == [None]
    (reply,) = driver.sent
    assert isinstance(reply, HeadersReply)
    address = target.member.instance.address
    assert reply.set_headers == {
        "x-gateway-destination-endpoint": address,
        ":path": "/tokenize?a=b",
        ":authority": address,
        "x-request-id": ID,
        "authorization": "Bearer k",
    }
    held = driver.placed.prefill if is_prefill else driver.placed.decode
    assert held == target.slot
    assert driver.placed.mode is None
    assert driver.replied.is_handed_over


def test_a_single_instance_path_without_an_instance_is_refused() -> None:
    """503, and a record of the refusal."""
    driver = Driver(NoPlacement("no_prefill_instance")).feed(headers("/tokenize"))
    assert (driver.reason, driver.refused.api) == ("no_prefill_instance", "other")


# --- the body step


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff", b'{"a":NaN}'])
def test_a_body_that_is_no_json_object_is_refused(body: bytes) -> None:
    """400 `body_invalid`, nothing placed."""
    driver = Driver().feed(headers(), RequestBody(body))
    assert (driver.immediate.status, driver.reason) == (400, "body_invalid")
    assert driver.refused.api == "completions"


def test_a_body_over_the_limit_is_refused_with_both_sizes() -> None:
    """413 that tells the size, the limit and the key."""
    driver = Driver(limits=Limits(max_body_bytes=10)).feed(headers(), BODY)
    message = json.loads(driver.immediate.body)["error"]["message"]
    assert driver.immediate.status == 413
    assert str(len(BODY.body)) in message
    assert "http.max_body_bytes" in message


@pytest.mark.parametrize("reason", ["no_prefill_instance", "no_decode_instance"])
def test_nothing_placeable_is_refused(reason: Reason) -> None:
    """503 with the reason of the pick; the record names the model."""
    driver = Driver(NoPlacement(reason)).feed(headers(), BODY)
    assert (driver.immediate.status, driver.reason) == (503, reason)
    assert (driver.refused.model, driver.refused.is_streaming) == ("m", True)


@pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE])
def test_a_request_that_one_transfer_cannot_carry_is_served_whole(role: Role) -> None:
    """`n` 2 goes to one instance of either role, without parameters, under its role's slot."""
    is_prefill = role is Role.PREFILL
    placement = Placement(
        prefill() if is_prefill else None, None if is_prefill else decode(), WRITE
    )
    body = b'{"model":"m","prompt":"hi","n":2,"kv_transfer_params":{"remote_host":"evil"}}'
    driver = Driver(placement).feed(headers(), RequestBody(body))
    assert driver.demands[0] is not None
    assert driver.demands[0].is_aggregated
    assert driver.body_reply.body == b'{"model":"m","prompt":"hi","n":2}'
    assert driver.body_reply.set_headers["x-request-id"] == ID
    assert (driver.placed.prefill is not None, driver.placed.decode is not None) == (
        is_prefill,
        not is_prefill,
    )
    assert driver.placed.mode is None
    assert driver.replied.is_handed_over
    assert driver.legs == []


def test_responses_are_served_whole_by_engines_that_need_embedded_addresses() -> None:
    """`/v1/responses` ignores the request id, so it cannot carry them (design §3)."""
    old = Placement(prefill(version=None), decode(), TransferMode.READ)
    body = RequestBody(b'{"model":"m","input":"hi"}')
    driver = Driver(old).feed(headers(RESPONSES), body)
    assert driver.legs == []
    assert driver.placed.decode is None
    assert "decode" not in driver.body_reply.metadata
    new = Driver(read_pair()).feed(headers(RESPONSES), body)
    assert len(new.legs) == 1


def test_the_record_of_a_placement_keeps_only_the_start_of_a_models_name() -> None:
    """A client may write megabytes there; records, labels and metadata carry 128 characters."""
    body = RequestBody(json.dumps({"model": "x" * 100_000, "prompt": "hi"}).encode())
    driver = Driver(read_pair()).feed(headers(), body)
    assert driver.placed.model == "x" * 128
    assert driver.demands[0] is not None
    assert driver.demands[0].model == "x" * 100_000
    refused = Driver(NoPlacement("no_prefill_instance")).feed(headers(), body).refused
    assert refused.model == "x" * 128


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


# --- ends


@pytest.mark.parametrize(
    ("driver", "phase"),
    [
        (lambda: Driver(), None),
        (lambda: Driver().feed(headers()), None),
        (lambda: reading(), "prefill"),
        (lambda: writing(PREFILL_OK), "decode"),
    ],
)
def test_a_client_that_leaves_gives_everything_back(
    driver: Callable[[], Driver], phase: str | None
) -> None:
    """Prefill is closed if it runs, the record says where it left, nothing is sent."""
    left = driver()
    sent = list(left.sent)
    left.feed(ClientLeft())
    assert left.exchange.phase is Phase.DONE
    assert left.sent == sent
    assert not left.is_prefill_open or ClosePrefill() in left.effects
    assert len(left.prefill_ends) == len(left.legs)
    if phase is None:
        assert left.notes == []
    else:
        assert left.replied == Replied(exchange=ID, is_handed_over=False, phase=phase)
    assert left.exchange.handle(ClientLeft(), 0) == []


@pytest.mark.parametrize(
    "driver",
    [
        lambda: Driver(),
        lambda: Driver().feed(headers()),
        lambda: reading(),
        lambda: writing(),
        lambda: writing(OK),
    ],
)
def test_an_internal_fault_is_answered_500_and_gives_everything_back(
    driver: Callable[[], Driver],
) -> None:
    """It is counted as `internal`, never as a client that left."""
    broken = driver().feed(Broke())
    assert (broken.immediate.status, broken.reason) == (500, "internal")
    assert broken.immediate.metadata["ex"] == ID
    records = [r for r in broken.notes if isinstance(r, Replied | Refused)]
    assert [r.reason for r in records] == [Reason.INTERNAL]
    broken.feed(Broke())
    assert broken.has_ended
    assert not broken.awaited
    assert all(r.phase == "" for r in records if isinstance(r, Replied))
    assert broken.exchange.handle(Broke(), 0) == []


def test_the_open_record_is_what_the_exchange_holds() -> None:
    """Nothing before placement and after the end; no prefill slot once prefill is over."""
    assert Driver().feed(headers()).exchange.open_record is None
    record = reading().exchange.open_record
    assert record is not None
    assert record.prefill is not None
    record = writing(PREFILL_OK).exchange.open_record
    assert record is not None
    assert (record.prefill, record.decode) == (None, Slot("10.0.1.5:8000", 0))
    assert reading(PREFILL_OK).exchange.open_record is None


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (Limits(), {"prefill": "p0#1", "decode": "d5#0"}),
        (
            Limits(shows_addresses=True),
            {"prefill": "10.0.0.0:8000#1", "decode": "10.0.1.5:8000#0"},
        ),
        (Limits(shows_route=False), {}),
    ],
)
def test_the_receipt_names_instances_not_addresses_unless_asked(
    limits: Limits, expected: dict[str, str]
) -> None:
    """`name#rank`; addresses, or nothing, by configuration."""
    metadata = reading(PREFILL_OK, limits=limits).body_reply.metadata
    assert {k: v for k, v in metadata.items() if k in ("prefill", "decode")} == expected


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
