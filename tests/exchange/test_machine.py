"""The exchange machine up to placement, and its ends."""

import json
from collections.abc import Callable

import pytest

from sidecar.exchange.effects import (
    ClosePrefill,
)
from sidecar.exchange.events import Broke, ClientLeft, Event
from sidecar.exchange.machine import Phase
from sidecar.exchange.reasons import Reason
from sidecar.exchange.records import Refused, Replied
from sidecar.exchange.situation import Limits, Situation
from sidecar.routing.instance import Role, TransferMode
from sidecar.routing.model_card import ModelCard
from sidecar.routing.slots import Demand, NoPlacement, Placement, Slot
from sidecar.wire.ext_proc import (
    HeadersReply,
    RequestBody,
)
from tests.exchange.exchange_driver import (
    BODY,
    ID,
    PREFILL_OK,
    RESPONSES,
    WRITE,
    Driver,
    decode,
    headers,
    prefill,
    read_pair,
)
from tests.exchange.exchange_events import (
    OK,
    reading,
    writing,
)

# --- the headers step


@pytest.mark.parametrize(
    ("situation", "reason"),
    [
        (Situation(is_draining=True, has_prefill=True, has_decode=True, cards=()), "draining"),
        (
            Situation(is_draining=False, has_prefill=False, has_decode=True, cards=()),
            "no_prefill_instance",
        ),
        (
            Situation(is_draining=False, has_prefill=True, has_decode=False, cards=()),
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
    draining = Situation(is_draining=True, has_prefill=True, has_decode=True, cards=())
    driver = Driver(situation=draining).feed(headers("/health", method="GET", is_last=True))
    assert (driver.immediate.status, driver.reason) == (503, "draining")


@pytest.mark.parametrize("target", [prefill(), decode()])
def test_a_single_instance_path_is_placed_at_the_headers(target: object) -> None:
    """It goes to the instance picked, whatever its role, with the engines' key; its slot passes to
    the log."""
    is_prefill = target.member.instance.role is Role.PREFILL
    placement = Placement(target if is_prefill else None, None if is_prefill else target, WRITE)
    driver = Driver(placement, limits=Limits(engine_api_key="k")).feed(headers("/tokenize?a=b"))
    assert driver.demands == [Demand(is_model_free=True)]
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
    known = Situation(has_prefill=True, has_decode=True, cards=(ModelCard("x" * 100_000),))
    body = RequestBody(json.dumps({"model": "x" * 100_000, "prompt": "hi"}).encode())
    driver = Driver(read_pair(), situation=known).feed(headers(), body)
    assert driver.placed.model == "x" * 128
    assert driver.demands[0] is not None
    assert driver.demands[0].model == "x" * 100_000
    nobody = NoPlacement("no_prefill_instance")
    refused = Driver(nobody, situation=known).feed(headers(), body).refused
    assert refused.model == "x" * 128


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
