"""Whenever a client leaves, no engine waits for it or keeps a block of its prompt."""

import signal
import threading

import pytest

from tests.e2e.stack import until
from tests.engines.fleet import GIVEN_UP_S, Fleet
from tests.engines.kinds import ALL, on
from tests.engines.leaving import Leaver, leave, leave_at_any_moment
from tests.engines.questions import Questions

pytestmark = pytest.mark.e2e


def leave_while_stopped(fleet: Fleet, role: str, name: str) -> None:
    """The engine of that role stands still when the request comes, and goes on when the client has
    left."""
    engine = getattr(fleet, role)
    asked = Questions(name).text(100, 32, is_streamed=True)
    leavers = [Leaver(asked, after_s=1.0)]
    client = threading.Thread(target=leave, args=(fleet.stack.url, leavers))
    engine.send(signal.SIGSTOP)
    try:
        client.start()
        until(lambda: fleet.stack.in_flight()[role], f"a request at {role}", 1)
        client.join()
        until(lambda: not any(fleet.stack.in_flight().values()), "the router is done with it", 3)
    finally:
        engine.send(signal.SIGCONT)
        client.join()


def check_served(fleet: Fleet, name: str) -> None:
    fleet.compare([Questions(f"after {name}").text(tokens, 8) for tokens in (33, 70)])


@on(ALL)
@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_leaving_while_an_engine_has_the_request(fleet: Fleet, role: str) -> None:
    """What prefill holds for a decode that never comes it gives up by itself."""
    leave_while_stopped(fleet, role, f"left {role}")
    fleet.rest(GIVEN_UP_S)
    check_served(fleet, role)


@on(ALL)
def test_leaving_in_mid_stream(fleet: Fleet) -> None:
    """All blocks are free at once: prefill's were fetched, decode's request is ended."""
    asked = Questions("in mid-stream")
    leavers = [
        Leaver(asked.text(60, 64, is_streamed=True), after_chunks=chunks) for chunks in (1, 2, 5)
    ]
    leave(fleet.stack.url, leavers)
    fleet.rest()
    check_served(fleet, "mid-stream")


@on([kind for kind in ALL if kind.mode != "WRITE"])
def test_leaving_at_any_moment(fleet: Fleet) -> None:
    """For WRITE see test_write_leavers."""
    leave_at_any_moment(fleet.stack.url)
    fleet.rest(GIVEN_UP_S)
    check_served(fleet, "any moment")
