"""The comparison, with a decode body that is changed on its way."""

from tests.e2e.stack import until
from tests.engines.comparison import Differs, compare
from tests.engines.counters import counters
from tests.engines.fleet import REST_S, Fleet
from tests.engines.meddler import Change, Meddler
from tests.engines.questions import Questions


def compare_meddled(fleet: Fleet, change: Change, name: str) -> None:
    """Four requests, one after the other. Raises Differs when an answer does, and when all are
    right and blocks are left behind."""
    meddler = Meddler(fleet.decode.url, change)
    asked = Questions(f"body {name}")
    questions = [asked.text(64, 8) for _ in range(4)]
    try:
        entry = fleet.entry(fleet.decode, url=meddler.url)
        with fleet.second_router(fleet.entry(fleet.prefill), entry) as stack:
            compare(fleet.prefill.url, stack.url, questions, timeout_s=8)
        assert meddler.passed, "no decode body came by"
    finally:
        meddler.close()
    for engine in (fleet.prefill, fleet.decode):
        try:
            until(lambda e=engine: counters(e.url).is_at_rest, f"{engine.role} at rest", REST_S)
        except AssertionError as error:
            raise Differs(f"right answers, but {error}") from error
