"""The exchange machine with NIXL: legs in series, decode gets prefill's answer as it came. And what
becomes of an answer of the other connector."""

import json
from collections.abc import Callable

import pytest

from sidecar.exchange.effects import FailTransfer, StartPrefill
from sidecar.exchange.events import ClientLeft, Event, PrefillAnswered
from sidecar.exchange.phase import Phase
from sidecar.exchange.reasons import Reason
from sidecar.exchange.records import Moved, Placed, PrefillEnded, Replied
from sidecar.exchange.situation import Limits
from sidecar.routing.instance import Connector, Version
from sidecar.routing.slots import Placement, Slot, every_slot
from sidecar.wire.ext_proc import BodyReply, RequestBody
from tests.exchange.exchange_driver import (
    BODY,
    ID,
    NIXL_KV,
    NIXL_OK,
    PREFILL_OK,
    PREFILL_WITHOUT_KV,
    READ,
    RESPONSES,
    Driver,
    decode,
    headers,
    nixl_pair,
    prefill,
)
from tests.exchange.exchange_events import (
    ERROR_500,
    OK,
    REFUSED,
    RESET,
    TX,
    pulling,
    reading,
    writing,
)

GIVEN = NIXL_KV.partition(b'"kv_transfer_params": ')[2][:-1]
"""the object, to the byte"""


def test_decode_is_sent_what_prefill_answered() -> None:
    """Prefill first, alone; then decode with the whole object; the slot passes to the log."""
    driver = pulling()
    assert [type(e) for e in driver.effects[-1:]] == [StartPrefill]
    assert driver.exchange.phase is Phase.PREFILL
    (leg,) = driver.legs
    assert leg.transfer is None
    assert leg.body_timeout_s is None
    assert json.loads(leg.body)["kv_transfer_params"]["remote_port"] is None
    driver.feed(NIXL_OK)
    reply = driver.body_reply
    assert reply.body == BODY.body[:-1] + b',"kv_transfer_params":' + GIVEN + b"}"
    assert reply.set_headers["x-gateway-destination-endpoint"] == "10.0.1.5:8000"
    assert (leg.headers["x-data-parallel-rank"], reply.set_headers["x-data-parallel-rank"]) == (
        "1", "0"
    )  # fmt: skip
    assert driver.prefill_ends == [PrefillEnded(exchange=ID, seconds=0.5, reason=None, has_kv=True)]
    assert driver.placed.mode is READ
    assert driver.replied == Replied(exchange=ID, is_handed_over=True)
    assert driver.has_ended


@pytest.mark.parametrize("path", ["/v1/completions", RESPONSES, "/v1/messages"])
@pytest.mark.parametrize("version", [None, Version(0, 25), Version(0, 33)])
def test_both_legs_have_the_clean_id_whatever_the_version(path: str, version: object) -> None:
    """And `/v1/responses`, which ignores it, is a pair like the others."""
    driver = Driver(nixl_pair(version=version)).feed(headers(path), BODY, NIXL_OK)
    (leg,) = driver.legs
    assert leg.headers["x-request-id"] == driver.body_reply.set_headers["x-request-id"] == ID
    assert driver.body_reply.set_headers["x-gateway-destination-endpoint"] == "10.0.1.5:8000"


def test_a_failed_prefill_is_tried_on_another_slot() -> None:
    """As in READ; decode pulls from the one that answered."""
    for failure, tried in (
        (RESET, frozenset({prefill().slot})),
        (ERROR_500, frozenset({prefill().slot})),
        (REFUSED, every_slot(prefill().member.instance)),
    ):
        driver = pulling(failure)
        assert driver.legs[0].body == driver.legs[1].body
        assert driver.legs[1].url.startswith("http://10.0.0.1:8000/")
        (_, again) = driver.demands
        assert again is not None
        assert again.excluded == tried
        driver.feed(NIXL_OK)
        assert GIVEN in driver.body_reply.body
        assert [one.has_kv for one in driver.prefill_ends] == [False, True]


def test_a_prefill_without_kv_serves_the_request_whole() -> None:
    """The same instance answers it, without parameters."""
    driver = pulling(PREFILL_WITHOUT_KV)
    assert driver.body_reply.set_headers["x-gateway-destination-endpoint"] == "10.0.0.0:8000"
    assert driver.body_reply.body == BODY.body
    again = driver.placed
    assert (again.mode, again.prefill, again.decode) == (None, Slot("10.0.0.0:8000", 1), None)
    assert len(driver.records(Placed)) == 2


def test_the_spare_decode_host_may_pull_as_well() -> None:
    """Prefill does not know who comes, so the body is good for both."""
    nixl = {"connector": Connector.NIXL}
    spared = Placement(prefill(**nixl), decode(6, **nixl), READ, decode(7, **nixl))
    driver = Driver(nixl_pair(), confirms=spared).feed(headers(), BODY, NIXL_OK)
    assert driver.records(Moved) == [Moved(exchange=ID, decode=Slot("10.0.1.6:8000", 0))]
    sent = driver.body_reply.set_headers
    assert sent["x-gateway-destination-endpoint"] == "10.0.1.6:8000,10.0.1.7:8000"
    assert sent["x-envoy-retry-on"] == "connect-failure"
    assert GIVEN in driver.body_reply.body


def test_a_client_that_leaves_as_prefill_ends_leaves_kv_that_is_counted() -> None:
    """Its lease frees it, and the ledger hears that there is some."""
    driver = pulling(ClientLeft(prefill=NIXL_OK))
    assert [one.has_kv for one in driver.prefill_ends] == [True]
    assert driver.replied == Replied(exchange=ID, is_handed_over=False, phase="prefill")


def test_a_request_that_one_transfer_cannot_carry_goes_whole() -> None:
    """To one instance, with no parameters."""
    body = RequestBody(b'{"model":"m","prompt":"hi","n":2}')
    driver = Driver(Placement(prefill(connector=Connector.NIXL), None, READ))
    driver.feed(headers(), body)
    assert driver.body_reply.body == body.body
    assert not driver.legs


# --- the other connector's answer


@pytest.mark.parametrize(
    ("way", "answer", "seen"),
    [
        (
            pulling,
            PREFILL_OK,
            "`transfer_id`, which is moriio's, and the router's `connector` is n",
        ),
        (reading, NIXL_OK, "`remote_port`, which is nixl's, and the router's `connector` is m"),
        (writing, NIXL_OK, "`remote_port`, which is nixl's, and the router's `connector` is m"),
    ],
)
def test_an_answer_of_another_connector_is_the_clients_502(
    way: Callable[..., Driver], answer: PrefillAnswered, seen: str
) -> None:
    """With the key to look at and what was seen; never sent to decode, and not tried again, though
    attempts are left: an operator must hear of it."""
    driver = way(limits=Limits(prefill_attempts=3)).feed(answer)
    assert (driver.immediate.status, driver.reason) == (502, "wrong_connector")
    assert seen in json.loads(driver.immediate.body)["error"]["message"]
    assert len(driver.legs) == 1
    bodies = [reply for reply in driver.sent if isinstance(reply, BodyReply)]
    assert len(bodies) == (way is writing)  # there decode was asked before
    reason = Reason.WRONG_CONNECTOR
    assert driver.prefill_ends == [
        PrefillEnded(exchange=ID, seconds=0.5, reason=reason, has_kv=True)
    ]
    assert driver.replied == Replied(exchange=ID, is_handed_over=False, reason=reason)
    assert driver.has_ended


@pytest.mark.parametrize("before", [[], [OK]])
def test_in_write_decode_is_told_that_nothing_will_come(before: list[Event]) -> None:
    """For certain: an engine of another connector pushes nothing."""
    driver = writing(*before, NIXL_OK)
    assert FailTransfer(TX, is_certain=True) in driver.effects
    assert not driver.awaited
