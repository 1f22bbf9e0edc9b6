"""The slots of one exchange: taken, replaced, given back once."""

import pytest

from sidecar.exchange.answers import Answers
from sidecar.exchange.asked import Asked
from sidecar.exchange.holding import Holding
from sidecar.exchange.reasons import Reason
from sidecar.exchange.records import Moved, Placed, Record, Replied, Spare
from sidecar.routing.slots import Target
from sidecar.wire.access_log import decode_trail
from sidecar.wire.paths import Api
from tests.exchange.exchange_driver import ID, READ, decode, prefill, read_pair

ANSWERS = Answers(ID, "theirs", {"prefill": "p0#1"})
ASKED = Asked(api=Api.CHAT, model_label="m", is_streaming=True, body_bytes=12)


def given_back(holding: Holding, reason: Reason | None = None, **what: object) -> list[Record]:
    usual = {
        "is_handed_over": True,
        "client_phase": "",
        "is_prefill_running": False,
        "spare": None,
    }
    return [note.record for note in holding.give_back(reason, **(usual | what))]


def test_a_pair_is_taken_with_its_transfer() -> None:
    """The record has all that accounting and adoption need."""
    holding = Holding(3)
    pair = read_pair()
    assert pair.prefill is not None
    assert pair.decode is not None
    assert holding.take_pair(ANSWERS, ASKED, pair, "tx-1").record == Placed(
        exchange=ID,
        request_id="theirs",
        worker=3,
        api="chat_completions",
        model="m",
        is_streaming=True,
        mode=READ,
        prefill=pair.prefill.slot,
        decode=pair.decode.slot,
        transfer_id="tx-1",
        prompt_bytes=12,
    )
    assert holding.is_open


@pytest.mark.parametrize("target", [prefill(), decode()])
def test_one_slot_is_taken_in_the_place_of_its_role(target: Target) -> None:
    """Without a mode or a transfer: nothing is transferred."""
    record = Holding(0).take_one(ANSWERS, ASKED, target).record
    assert isinstance(record, Placed)
    ends = (record.prefill, record.decode)
    assert ends == ((target.slot, None) if target == prefill() else (None, target.slot))
    assert (record.mode, record.transfer_id) == (None, "")


def test_a_later_take_replaces_the_earlier() -> None:
    """Both are given back by one reply."""
    holding = Holding(0)
    holding.take_pair(ANSWERS, ASKED, read_pair(0), "tx-1")
    again = holding.take_pair(ANSWERS, ASKED, read_pair(1), "tx-2").record
    assert holding.record == again
    assert len(given_back(holding)) == 1
    assert given_back(holding) == []


def test_decode_may_move() -> None:
    """The record follows, and what is told is the new slot."""
    holding = Holding(0)
    holding.take_pair(ANSWERS, ASKED, read_pair(), "tx-1")
    other = decode(7)
    assert holding.move(other).record == Moved(exchange=ID, decode=other.slot)
    assert holding.record is not None
    assert holding.record.decode == other.slot


def test_envoy_is_told_whose_it_is_and_what_it_holds() -> None:
    """So that another control process can adopt it from the access log."""
    holding = Holding(0)
    holding.take_pair(ANSWERS, ASKED, read_pair(), "tx-1")
    metadata = holding.metadata(ANSWERS)
    assert (metadata["ex"], metadata["client_id"], metadata["prefill"]) == (ID, "theirs", "p0#1")
    trail = decode_trail(metadata["rec"])
    assert trail is not None
    assert holding.record is not None
    assert (trail.prefill, trail.decode) == (holding.record.prefill, holding.record.decode)


def test_what_is_given_back_says_how_it_ended() -> None:
    """Once; a second time there is nothing."""
    holding = Holding(0)
    holding.take_pair(ANSWERS, ASKED, read_pair(), "tx-1")
    spare = decode(6)
    what = {"client_phase": "prefill", "is_prefill_running": True, "spare": spare}
    assert given_back(holding, Reason.INTERNAL, is_handed_over=False, **what) == [
        Replied(
            exchange=ID,
            is_handed_over=False,
            reason=Reason.INTERNAL,
            phase="prefill",
            is_prefill_running=True,
            spare=Spare(spare.slot, spare.member.endpoint),
        )
    ]
    assert not holding.is_open
    assert given_back(holding) == []


def test_nothing_is_given_back_where_nothing_was_taken() -> None:
    """A refusal before placement."""
    assert given_back(Holding(0)) == []
