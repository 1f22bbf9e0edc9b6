"""WRITE: clients that leave while decode waits for prefill's push, on engines that lose blocks by
it (vLLM 0.32). The blocks stay taken."""

import signal

import pytest

from tests.e2e.stack import until
from tests.engines.fleet import GIVEN_UP_S, Fleet
from tests.engines.kinds import ALL, on
from tests.engines.leaving import Leaver, leave, leave_at_any_moment
from tests.engines.questions import Questions

pytestmark = pytest.mark.e2e


WRITING = [kind for kind in ALL if kind.mode == "WRITE"]


@on(WRITING)
def test_leaving_at_any_moment_ends_everything_but_decodes_blocks(spoilt_fleet: Fleet) -> None:
    """In series too decode waits: for the moment that a push takes."""
    fleet = spoilt_fleet
    leave_at_any_moment(fleet.stack.url)
    until(lambda: not any(fleet.stack.in_flight().values()), "every slot is free", GIVEN_UP_S)
    until(lambda: fleet.counters(fleet.prefill).is_at_rest, "prefill at rest", GIVEN_UP_S)

    def is_idle() -> bool:
        decode = fleet.counters(fleet.decode)
        return not decode.running and not decode.waiting

    until(is_idle, "decode runs and waits for nothing", GIVEN_UP_S)
    fleet.compare([Questions("after any moment").text(tokens, 8) for tokens in (33, 70)])


@on(WRITING)
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
    fleet.compare([Questions("after at once").text(tokens, 8) for tokens in (33, 70)])
    assert fleet.counters(fleet.decode).kv_usage > before
