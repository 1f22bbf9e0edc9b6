"""What stands between router and decode changes nothing by itself, and can make decode reject."""

import json
from typing import Any

import pytest

from tests.e2e.stack import http
from tests.engines.fleet import GIVEN_UP_S, Fleet
from tests.engines.kinds import ALL, on
from tests.engines.meddled import compare_meddled
from tests.engines.meddler import Meddler
from tests.engines.questions import Question, Questions

pytestmark = pytest.mark.e2e


@on(ALL)
def test_a_body_as_it_is_passes(fleet: Fleet) -> None:
    compare_meddled(fleet, lambda params: params, "unchanged")


def ask(fleet: Fleet, question: Question, **meddling: Any) -> tuple[int, bytes]:
    """One request through a router whose decode leg is meddled with."""
    meddler = Meddler(fleet.decode.url, lambda params: params, **meddling)
    try:
        entry = fleet.entry(fleet.decode, url=meddler.url)
        with fleet.second_router(fleet.entry(fleet.prefill), entry) as stack:
            return http("POST", stack.url + question.path, question.body, timeout_s=60)
    finally:
        meddler.close()


@on(ALL)
def test_what_decode_rejects_after_prefill_is_its_refusal(fleet: Fleet) -> None:
    """The client gets decode's own 400, and nobody keeps a block: prefill is told by decode
    (NIXL), or gives them up."""
    question = Questions("rejected").text(90, 4)
    wrong = {"temperature": -7}
    status, body = ask(fleet, question, body=lambda asked: asked | wrong)
    own = http("POST", fleet.decode.url + question.path, question.body | wrong)
    assert status == own[0] == 400
    assert json.loads(body) == json.loads(own[1])
    fleet.rest(GIVEN_UP_S)


@on([kind for kind in ALL if kind.connector == "nixl"])
def test_what_nobody_fetches_is_free_when_its_lease_is_over(fleet: Fleet) -> None:
    """Decode never gets the request: prefill keeps the blocks for its lease, and no longer."""
    status, _ = ask(fleet, Questions("leased").text(90, 4), is_deaf=True)
    assert status >= 500
    assert fleet.counters(fleet.prefill).kv_usage > 0, "its blocks are leased"
    fleet.rest(GIVEN_UP_S)
