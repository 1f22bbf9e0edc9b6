"""The exchange machine in WRITE with the legs in series: as READ, but for who names whom."""

import json

import pytest

from sidecar.exchange.events import ClientLeft, PrefillAnswered
from sidecar.exchange.machine import Phase
from sidecar.exchange.reasons import Reason
from sidecar.exchange.records import PrefillEnded, Replied
from sidecar.exchange.situation import Limits
from sidecar.routing.instance import Version
from sidecar.routing.slots import NoPlacement, Placement
from sidecar.wire.ext_proc import RequestBody
from tests.exchange.exchange_driver import (
    BODY,
    ID,
    KV,
    PREFILL_OK,
    PREFILL_WITHOUT_KV,
    RESPONSES,
    WRITE,
    Driver,
    decode,
    headers,
    prefill,
    write_pair,
)
from tests.exchange.exchange_events import ERROR_500

LATE = Limits(writes_in_series=True)


def late(*placements: Placement | NoPlacement, **more: object) -> Driver:
    driver = Driver(*(placements or (write_pair(),)), limits=LATE, **more)
    return driver.feed(headers(), BODY)


def test_decode_is_asked_after_prefill_has_answered() -> None:
    """It names prefill itself: in WRITE it does not need what prefill returned."""
    driver = late()
    assert driver.exchange.phase is Phase.PREFILL
    assert len(driver.sent) == 1, "decode has not been asked"
    leg = json.loads(driver.legs[0].body)["kv_transfer_params"]
    assert leg["remote_host"] == "10.0.1.5", "prefill is told whom it pushes to"
    driver.feed(PREFILL_OK)
    params = json.loads(driver.body_reply.body)["kv_transfer_params"]
    assert (params["remote_host"], params["is_request_leader"]) == ("10.0.0.0", True)
    assert params["transfer_id"] == leg["transfer_id"]
    assert driver.replied == Replied(exchange=ID, is_handed_over=True)
    assert driver.has_ended


def test_decode_is_told_the_rank_that_prefill_ran_on() -> None:
    """Which is not always the one that it was sent to."""
    other = KV.replace(b'"remote_dp_rank":1', b'"remote_dp_rank":0')
    driver = late().feed(PrefillAnswered(status=200, body=other, seconds=0.5))
    assert driver.legs[0].headers["x-data-parallel-rank"] == "1"
    assert json.loads(driver.body_reply.body)["kv_transfer_params"]["remote_dp_rank"] == 0


@pytest.mark.parametrize(
    ("path", "dp_size", "version", "is_late"),
    [
        (RESPONSES, 2, Version(0, 32), True),
        (RESPONSES, 1, Version(0, 32), False),
        (RESPONSES, 2, Version(0, 33), False),
        ("/v1/completions", 2, Version(0, 32), False),
    ],
)
def test_responses_go_in_series_where_prefill_takes_any_rank(
    path: str, dp_size: int, version: Version, is_late: bool
) -> None:
    """Before 0.33 that API does not look at the rank's header: asked at once, decode would wait for
    a push of the wrong one."""
    p = prefill(mode=WRITE, rank=0, dp_size=dp_size, version=version)
    driver = Driver(Placement(p, decode(mode=WRITE), WRITE))
    body = BODY if path != RESPONSES else RequestBody(b'{"model":"m","input":"hi","store":false}')
    driver.feed(headers(path), body)
    assert driver.exchange.phase is (Phase.PREFILL if is_late else Phase.DECODE)


def test_nothing_is_awaited_while_prefill_runs() -> None:
    """So nothing is left to be told when it fails or the client leaves."""
    driver = late()
    assert driver.legs[0].transfer is None
    assert driver.legs[0].body_timeout_s is None
    driver.feed(ClientLeft())
    assert driver.has_ended
    assert not driver.is_prefill_open, "the leg is closed: decode does not wait for it"
    assert driver.prefill_ends == [PrefillEnded(exchange=ID, seconds=None, reason=None)]


def test_a_prefill_that_fails_is_tried_elsewhere_under_another_transfer() -> None:
    driver = late(write_pair(), write_pair(p=1)).feed(ERROR_500, PREFILL_OK)
    first, second = [
        json.loads(leg.body)["kv_transfer_params"]["transfer_id"] for leg in driver.legs
    ]
    assert first != second
    params = json.loads(driver.body_reply.body)["kv_transfer_params"]
    assert (params["transfer_id"], params["remote_host"]) == (second, "10.0.0.1")


def test_prefill_without_kv_serves_it_whole() -> None:
    driver = late().feed(PREFILL_WITHOUT_KV)
    assert driver.body_reply.set_headers["x-gateway-destination-endpoint"] == "10.0.0.0:8000"
    assert "kv_transfer_params" not in json.loads(driver.body_reply.body)


def test_where_decode_went_while_prefill_ran_both_are_placed_anew() -> None:
    """Prefill was told to push to the one that is gone."""
    gone = NoPlacement("no_decode_instance")
    driver = late(write_pair(), write_pair(d=6), confirms=gone).feed(PREFILL_OK)
    assert driver.exchange.phase is Phase.PREFILL
    assert len(driver.legs) == 2
    assert json.loads(driver.legs[1].body)["kv_transfer_params"]["remote_host"] == "10.0.1.6"


def test_where_decode_went_and_no_attempt_is_left_it_is_refused() -> None:
    gone = NoPlacement("no_decode_instance")
    once = Limits(writes_in_series=True, prefill_attempts=1)
    driver = Driver(write_pair(), confirms=gone, limits=once).feed(headers(), BODY, PREFILL_OK)
    assert driver.reason == Reason.NO_DECODE_INSTANCE
    assert driver.has_ended


@pytest.mark.parametrize("version", [Version(0, 31), None])
@pytest.mark.parametrize("is_prefill", [False, True])
def test_older_engines_are_asked_at_once(version: Version | None, is_prefill: bool) -> None:
    """A prefill that may free its blocks before decode has asked must not be waited for."""
    p = prefill(mode=WRITE, **({"version": version} if is_prefill else {}))
    d = decode(mode=WRITE, **({} if is_prefill else {"version": version}))
    driver = late(Placement(p, d, WRITE))
    assert driver.exchange.phase is Phase.DECODE
    assert driver.legs[0].transfer is not None
