"""The table of reasons: closed, whole, and in OpenAI's shape."""

import json

import pytest

from sidecar.exchange.reasons import OWN_REPLY, TABLE, Outcome, Reason, refusal


def test_every_reason_has_a_row() -> None:
    """And no row is without a reason."""
    assert set(TABLE) == set(Reason)


@pytest.mark.parametrize("reason", Reason)
def test_a_refusal_is_an_openai_error_with_its_reason(reason: Reason) -> None:
    """Body, `x-pd-error` and metadata name it; a 503 says when to come again."""
    reply = refusal(reason, echo={"x-request-id": "mine"})
    row = TABLE[reason]
    assert reply.status == row.status
    assert json.loads(reply.body) == {
        "error": {"message": row.message, "type": row.kind, "param": None, "code": reason.value}
    }
    assert reply.headers["x-pd-error"] == reason.value
    assert reply.headers["x-request-id"] == "mine"
    assert reply.headers["content-type"] == "application/json"
    assert reply.metadata == {"reply": reason.value}
    assert ("retry-after" in reply.headers) == (row.status == 503)


@pytest.mark.parametrize("reason", Reason)
def test_status_and_outcome_agree_on_whose_fault_it_was(reason: Reason) -> None:
    """4xx is the client's; nothing of ours is."""
    row = TABLE[reason]
    assert (row.outcome is Outcome.CLIENT_ERROR) == (row.status < 500)


def test_a_detail_takes_the_place_of_the_message() -> None:
    """Where more can be said."""
    assert b'"message":"because"' in refusal(Reason.BODY_INVALID, detail="because").body


def test_the_mark_of_own_answers_is_no_reason() -> None:
    """The ledger tells them apart by it."""
    assert OWN_REPLY not in set(Reason)
