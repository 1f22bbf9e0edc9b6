"""What stands between router and decode changes nothing by itself, and can make decode reject."""

import json
from typing import Any

import pytest

from tests.e2e.stack import http
from tests.engines.fleet import GIVEN_UP_S, Fleet
from tests.engines.kinds import ALL, on
from tests.engines.meddled import compare_meddled
from tests.engines.meddler import Meddler
from tests.engines.questions import Questions

pytestmark = pytest.mark.e2e


@on(ALL)
def test_a_body_as_it_is_passes(fleet: Fleet) -> None:
    compare_meddled(fleet, lambda params: params, "unchanged")


@on(ALL)
def test_what_decode_rejects_after_prefill_is_its_refusal(fleet: Fleet) -> None:
    """The client gets decode's own 400, and nobody keeps a block: prefill is told by decode
    (NIXL), or gives them up."""

    def hot(asked: dict[str, Any]) -> dict[str, Any]:
        return asked | {"temperature": -7}

    meddler = Meddler(fleet.decode.url, lambda params: params, body=hot)
    asked = Questions("rejected").text(90, 4)
    try:
        entry = fleet.entry(fleet.decode, url=meddler.url)
        with fleet.second_router(fleet.entry(fleet.prefill), entry) as stack:
            status, body = http("POST", stack.url + asked.path, asked.body)
    finally:
        meddler.close()
    own = http("POST", fleet.decode.url + asked.path, asked.body | {"temperature": -7})
    assert (status, json.loads(body)) == (own[0], json.loads(own[1]))
    assert status == 400
    fleet.rest(GIVEN_UP_S)


@on([kind for kind in ALL if kind.connector == "nixl"])
def test_what_nobody_fetches_is_free_when_its_lease_is_over(fleet: Fleet) -> None:
    """Decode never gets the request: prefill keeps the blocks for its lease, and no longer."""
    meddler = Meddler(fleet.decode.url, lambda params: params, is_deaf=True)
    asked = Questions("leased").text(90, 4)
    try:
        entry = fleet.entry(fleet.decode, url=meddler.url)
        with fleet.second_router(fleet.entry(fleet.prefill), entry) as stack:
            status, _ = http("POST", stack.url + asked.path, asked.body)
    finally:
        meddler.close()
    assert status >= 500
    assert fleet.counters(fleet.prefill).kv_usage > 0, "its blocks are leased"
    fleet.rest(GIVEN_UP_S)
