"""The comparison, with a decode body that is changed on its way."""

from tests.e2e.stack import until
from tests.engines.comparison import compare
from tests.engines.counters import counters
from tests.engines.fleet import REST_S, Fleet
from tests.engines.meddler import Change, Meddler
from tests.engines.questions import Questions


class LeftBehind(AssertionError):
    """Every answer is right, and an engine still has something of the requests."""


def compare_meddled(
    fleet: Fleet, change: Change, name: str, timeout_s: float = 60.0, *, must_rest: bool = True
) -> None:
    """Four requests, one after the other. Raises Differs when an answer does, and when all are
    right and something is left of them LeftBehind."""
    meddler = Meddler(fleet.decode.url, change)
    asked = Questions(f"body {name}")
    questions = [asked.text(64, 8) for _ in range(4)]
    try:
        entry = fleet.entry(fleet.decode, url=meddler.url)
        with fleet.second_router(fleet.entry(fleet.prefill), entry) as stack:
            compare(fleet.prefill.url, stack.url, questions, timeout_s=timeout_s)
            if must_rest:  # before prefill gives up by itself
                _check_rest(fleet)
        assert meddler.passed, "no decode body came by"
    finally:
        meddler.close()


def _check_rest(fleet: Fleet) -> None:
    for engine in (fleet.prefill, fleet.decode):
        limit_s = REST_S[fleet.kind.is_real]
        try:
            until(lambda e=engine: counters(e.url).is_at_rest, f"{engine.role} at rest", limit_s)
        except AssertionError as error:
            raise LeftBehind(str(error)) from error
