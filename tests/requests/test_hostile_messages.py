"""Messages without one clear end reach no engine, and nothing hides in them."""

import contextlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from tests.requests.hostile_messages import INNER, MARK, MESSAGES
from tests.requests.raw_http import Answer, parsed_all
from tests.requests.scripted_engine import Got
from tests.requests.transport_stack import PATH, Wired

pytestmark = pytest.mark.e2e
LAST = b"GET /last HTTP/1.1\r\nHost: e\r\nConnection: close\r\n\r\n"
"""Sent behind each message, so that the connection ends: 404 if it is seen as a request."""


@dataclass
class Outcome:
    """What became of one message: Envoy's answers, and what engines got of it."""

    answers: list[Answer]
    got: list[Got]


@pytest.fixture(scope="module")
def outcomes(session_wired: Wired) -> dict[tuple[str, str], Outcome]:
    """Of all messages, sent side by side: each ends by Envoy's close, which takes a second."""
    session_wired.reset()
    sent = [(way, name) for way in ("pd", "single") for name in MESSAGES]
    with ThreadPoolExecutor(40) as clients:
        answers = list(clients.map(lambda key: _answers(session_wired, *key), sent))
    found = {key: Outcome(its, []) for key, its in zip(sent, answers, strict=True)}
    for one in session_wired.got:
        found[_key(one.head.get("x-message") or "")].got.append(one)
    session_wired.assert_serves()
    return found


def _key(written: str) -> tuple[str, str]:
    way, _, name = written.partition(":")
    return way, name


def _answers(wired: Wired, way: str, name: str) -> list[Answer]:
    sent = MESSAGES[name].sent.replace(b"/tokenize", PATH[way].encode(), 1)
    who = f"X-Message: {way}:{name}\r\nContent-Type:".encode()
    with wired.client() as client:
        with contextlib.suppress(ConnectionError):  # closed already
            client.send(sent.replace(b"Content-Type:", who) + LAST)
        return parsed_all(client.wire.rest(), is_head=b"HEAD" in sent)


@pytest.mark.parametrize("way", ["pd", "single"])
@pytest.mark.parametrize("name", MESSAGES)
def test_nothing_is_smuggled(outcomes: dict[tuple[str, str], Outcome], way: str, name: str) -> None:
    """A clear refusal or a closed connection; an engine never sees what was inside, nor more
    requests than the client was answered."""
    outcome = outcomes[way, name]
    assert not [one for one in outcome.got if MARK in one.head.first]
    served = [one for one in outcome.answers if one.status == 200]
    assert len(served) <= MESSAGES[name].is_valid
    paths = {one.path for one in outcome.got}
    assert paths <= {PATH[way], "/version"}
    legs = 2 if paths == {PATH["pd"]} else 1
    assert len(outcome.got) == legs * len(served)
    for refused in outcome.answers:
        if refused.status == 405:  # to HEAD, so without a body
            assert name.startswith("HEAD")
        elif refused.status != 200:
            assert 400 <= refused.refusal[0] < 500 or refused.status == 501  # an unknown coding


def test_what_follows_a_line_of_http_09_is_nobodys(wired: Wired) -> None:
    """Such a request is its line alone; it is answered, and the connection closed."""
    with wired.client() as client:
        client.send(b"GET /version\r\n" + INNER)
        answers = parsed_all(client.wire.rest())
    assert [one.status for one in answers] == [200]
    (one,) = wired.got
    assert (one.method, one.path, one.body) == ("GET", "/version", b"")


def test_a_request_behind_a_refused_one_is_not_answered_in_its_place(wired: Wired) -> None:
    """The connection ends with the refusal: the rest of it is nobody's."""
    bad = b"POST /tokenize HTTP/1.1\r\nHost: e\r\nContent-Length: 4x\r\n\r\n"
    with wired.client() as client:
        client.send(bad + INNER)
        answers = parsed_all(client.wire.rest())
    assert [one.refusal for one in answers] == [(400, "bad_request")]
    assert wired.got == []
