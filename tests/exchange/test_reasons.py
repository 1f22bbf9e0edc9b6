"""The table of reasons: closed, whole, and in OpenAI's shape."""

import json
import re

import pytest
import yaml

from sidecar.app.files import envoy_yaml
from sidecar.exchange.reasons import OWN_REPLY, TABLE, Outcome, Reason, refusal


def test_every_reason_has_a_row() -> None:
    """And no row is without a reason."""
    assert set(TABLE) == set(Reason)


ANSWERED = [reason for reason in Reason if TABLE[reason].status is not None]


def test_what_can_only_be_cut_has_no_answer() -> None:
    """Its status has gone out before."""
    cut = set(Reason) - set(ANSWERED)
    assert cut == {Reason.DECODE_STALLED, Reason.DECODE_CUT}
    for reason in cut:
        with pytest.raises(AssertionError, match="no answer"):
            refusal(reason)


def envoys_words() -> dict[str, tuple[int | None, str, str, bool]]:
    """reason -> status, type, message and whether it says when to come again, of the listener's
    mappers."""
    (listener,) = yaml.safe_load(re.sub(r"\$\{(\w+)\}", "1", envoy_yaml("listener.yaml")))[
        "resources"
    ]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    words = {}
    for mapper in manager["local_reply_config"]["mappers"]:
        if "headers_to_add" not in mapper:
            continue
        headers = {h["header"]["key"]: h["header"]["value"] for h in mapper["headers_to_add"]}
        error = mapper["body_format_override"]["json_format"]["error"]
        assert error["code"] == headers["x-pd-error"]
        status = re.findall(r"'op': 'EQ', 'value': {'default_value': (\d+)", str(mapper["filter"]))
        code = mapper.get("status_code") or (int(status[0]) if status else None)
        words[error["code"]] = (code, error["type"], error["message"], "retry-after" in headers)
    return words


def test_envoys_own_refusals_have_the_tables_words() -> None:
    """Status, type and message are in both; one reason never has two texts."""
    words = envoys_words()
    for reason in ANSWERED:
        row = TABLE[reason]
        if row.is_envoys or reason.value in words:
            expected = (row.status, row.kind, row.message, row.status == 503)
            assert words[reason.value] == expected, reason


@pytest.mark.parametrize("reason", ANSWERED)
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
    assert ("retry-after" in reply.headers) == (row.status in (429, 503))


@pytest.mark.parametrize("reason", ANSWERED)
def test_status_and_outcome_agree_on_whose_fault_it_was(reason: Reason) -> None:
    """4xx is the client's; nothing of ours is, and 429 is about all clients together."""
    row = TABLE[reason]
    assert (row.outcome is Outcome.CLIENT_ERROR) == (row.status < 500 and row.status != 429)


def test_a_detail_takes_the_place_of_the_message() -> None:
    """Where more can be said."""
    assert b'"message":"because"' in refusal(Reason.BODY_INVALID, detail="because").body


def test_the_mark_of_own_answers_is_no_reason() -> None:
    """The ledger tells them apart by it."""
    assert OWN_REPLY not in set(Reason)
