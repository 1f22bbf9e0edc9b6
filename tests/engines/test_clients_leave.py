"""Whenever a client leaves, no engine waits for it or keeps a block of its prompt."""

import random
import signal
import threading

import pytest

from tests.e2e.stack import until
from tests.engines.fleet import GIVEN_UP_S, Fleet
from tests.engines.kinds import ALL, SIMULATED, Kind, on
from tests.engines.leaving import Leaver, leave
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


@on(ALL)
def test_leaving_at_any_moment(fleet: Fleet) -> None:
    """Forty clients with little patience, eight at a time."""
    asked, draw = Questions("any moment"), random.Random(5)
    for _ in range(5):
        leavers = [
            Leaver(asked.text(draw.randrange(20, 300), 32, is_streamed=True), draw.uniform(0, 0.4))
            for _ in range(8)
        ]
        leave(fleet.stack.url, leavers)
    fleet.rest(GIVEN_UP_S)
    check_served(fleet, "any moment")


@on([Kind(True, "moriio", "WRITE"), *(kind for kind in SIMULATED if kind.mode == "WRITE")])
def test_decode_that_was_asked_at_once_keeps_its_blocks(spoilt_fleet: Fleet) -> None:
    """Why the legs are in series unless told otherwise (vLLM 0.32): decode ends the request,
    forgets its transfer, and prefill's push finds nobody to free the blocks. Where an engine does
    better this fails, and `placement.write_legs` can have another default."""
    fleet = spoilt_fleet
    entries = [fleet.entry(fleet.prefill), fleet.entry(fleet.decode)]
    before = fleet.counters(fleet.decode).kv_usage
    asked = Questions("at once").text(100, 32, is_streamed=True)
    with fleet.second_router(*entries, placement={"write_legs": "at_once"}) as stack:
        fleet.prefill.send(signal.SIGSTOP)
        try:
            leave(stack.url, [Leaver(asked, after_s=1.0)])
        finally:
            fleet.prefill.send(signal.SIGCONT)
        until(lambda: not any(stack.in_flight().values()), "prefill has answered", GIVEN_UP_S)
    check_served(fleet, "at once")
    assert fleet.counters(fleet.decode).kv_usage > before
