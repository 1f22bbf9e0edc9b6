"""What is held against an instance, what speaks for it, and what says nothing of it."""

import msgspec
import pytest

from sidecar.app.evidence import of_log, of_prefill
from sidecar.exchange.reasons import Reason
from sidecar.routing.instance import TransferMode
from sidecar.routing.slots import Slot
from sidecar.routing.standing import Evidence, Failure
from sidecar.wire.access_log import Attempt, Entry, Trail

P = Slot("10.0.0.1:8000", 2)
LIMIT_S = 100.0


@pytest.mark.parametrize(
    ("reason", "failure"),
    [
        (Reason.PREFILL_REFUSED, Failure.REFUSED),
        (Reason.PREFILL_UNREACHABLE, Failure.TIMEOUT),
        (Reason.PREFILL_RESET, Failure.RESET),
        (Reason.PREFILL_TIMEOUT, Failure.TIMEOUT),
        (Reason.PREFILL_ERROR, Failure.ERROR),
        (Reason.PREFILL_REJECTED, None),
        (None, None),
    ],
)
def test_a_prefill_leg_that_ended(reason: Reason | None, failure: Failure | None) -> None:
    """A 4xx is an answer: the instance served. The slot's rank plays no part."""
    expected = Evidence(where=P.address, failure=failure, placed_at=7.0)
    assert of_prefill(P, reason, 7.0, LIMIT_S, LIMIT_S) == expected


@pytest.mark.parametrize(("seconds", "is_blamed"), [(0.5, False), (80.0, False), (99.0, True)])
def test_what_an_earlier_attempt_left_was_not_enough(seconds: float, is_blamed: bool) -> None:
    """No fault of the second instance; whatever else it did in that time is held against it."""
    told = of_prefill(P, Reason.PREFILL_TIMEOUT, 7.0, seconds, LIMIT_S)
    assert (told is not None) == is_blamed
    assert of_prefill(P, Reason.PREFILL_RESET, 7.0, seconds, LIMIT_S) is not None
    assert of_prefill(P, Reason.PREFILL_UNREACHABLE, 7.0, seconds, LIMIT_S) is not None
    assert of_prefill(P, None, 7.0, seconds, LIMIT_S) is not None


@pytest.mark.parametrize(
    "reason",
    [Reason.INTERNAL, Reason.DRAINING, Reason.BODY_INVALID, Reason.WRONG_CONNECTOR],
)
def test_our_own_faults_say_nothing_of_the_instance(reason: Reason) -> None:
    """In neither direction; nor does a connector that the configuration got wrong."""
    assert of_prefill(P, reason, 7.0, LIMIT_S, LIMIT_S) is None


def attempt(*flags: str, failure: str = "") -> Attempt:
    return Attempt(upstream=P.address, flags=frozenset(flags), failure=failure, took_s=2.0)


@pytest.mark.parametrize(
    ("log", "failure"),
    [
        (attempt("UF", failure="delayed connect error: Connection refused"), Failure.REFUSED),
        (
            attempt("UF", failure="immediate connect error: Network is unreachable|remote.."),
            Failure.REFUSED,
        ),
        (attempt("UF", failure="delayed connect error: No route to host"), Failure.REFUSED),
        (attempt("UF", failure="delayed connect error: Connection timed out"), Failure.TIMEOUT),
        (attempt("UF"), Failure.TIMEOUT),
        (attempt("UC"), Failure.RESET),
        (attempt("UR"), Failure.RESET),
        (attempt("UPE"), Failure.RESET),
    ],
)
def test_a_failed_attempt_is_held_against_its_host(log: Attempt, failure: Failure) -> None:
    """From the moment it began, however late it is told. A connect that Envoy's own limit ended has
    no words, and is not refused: the backlog of an engine that lives may overflow in a burst."""
    assert of_log(log, 10.0) == Evidence(where=P.address, failure=failure, placed_at=8.0)


@pytest.mark.parametrize(
    "log",
    [
        attempt("UO"),
        attempt("SI"),
        attempt("UT"),
        attempt("UF", failure="immediate connect error: Cannot assign requested address|remote"),
        attempt("UF", failure="immediate connect error: Too many open files"),
    ],
    ids=["our circuit breaker", "idle", "late", "no port here", "no descriptor here"],
)
def test_what_may_be_another_ones_is_no_failure(log: Attempt) -> None:
    """Ours, or where the time ran out the client's or prefill's: the end of the exchange knows."""
    assert of_log(log, 10.0) is None


def answer(status: int, *flags: str, **what: object) -> Entry:
    known: dict[str, object] = {
        "exchange": "e",
        "is_end": True,
        "status": status,
        "flags": frozenset(flags),
        "upstream": P.address,
        "trail": None,
        "reply": "",
        "total_s": None,
        "first_byte_s": None,
        "lasted_s": 3.0,
        "details": "via_upstream",
    }
    return Entry(**(known | what))


@pytest.mark.parametrize(
    ("log", "failure"),
    [
        (answer(200), None),
        (answer(400), None),
        (answer(429), None),
        (answer(500), Failure.ERROR),
        (answer(502), Failure.ERROR),
        (answer(200, "SI", details="stream_idle_timeout"), Failure.TIMEOUT),
        (answer(504, "SI", details="stream_idle_timeout"), Failure.TIMEOUT),
        (answer(504, "UT", details="upstream_per_try_timeout"), Failure.TIMEOUT),
    ],
)
def test_the_engines_own_answer_speaks_for_it_or_against_it(
    log: Entry, failure: Failure | None
) -> None:
    """4xx too: it works, the request is wrong. Not one byte, with headers or without, is a
    time-out."""
    assert of_log(log, 10.0) == Evidence(where=P.address, failure=failure, placed_at=7.0)


@pytest.mark.parametrize("log", [answer(200, "SI"), answer(504, "SI"), answer(504, "UT")])
@pytest.mark.parametrize("mode", [None, *TransferMode])
def test_decode_that_waits_for_prefill_is_not_late(log: Entry, mode: TransferMode | None) -> None:
    """In WRITE nothing comes of it until prefill has pushed, and prefill may be dead; what it
    answers in WRITE counts as in READ."""
    trail = Trail(
        worker=0, api="chat", model="m", is_streaming=True, mode=mode, prefill=P, decode=P
    )
    told = of_log(msgspec.structs.replace(log, trail=trail), 10.0)
    assert (told is None) == (mode is TransferMode.WRITE)
    failed = of_log(answer(500, trail=trail), 10.0)
    assert failed is not None
    assert failed.failure is Failure.ERROR


@pytest.mark.parametrize(
    "log",
    [
        answer(503),
        answer(501),
        answer(200, "DC"),
        answer(0, "DC", details="downstream_remote_disconnect"),
        answer(200, "UPE", details="upstream_reset_after_response_started{protocol_error}"),
        answer(503, "UF", details="upstream_reset_before_response_started{..}"),
        answer(200, "SI", details="stream_idle_timeout", first_byte_s=0.1),
        answer(200, "UT", details="upstream_per_try_timeout", first_byte_s=0.1),
        answer(502, reply="prefill_error", details="ext_proc"),
        answer(200, reply="own"),
        answer(500, details="ext_proc_error"),
        answer(200, is_end=False),
        answer(200, upstream=""),
    ],
)
def test_other_ends_say_nothing_here(log: Entry) -> None:
    """Paused, the client left, our own or Envoy's answer, a report of what is still open; what
    failed upstream is told once, by the attempt's own entry."""
    assert of_log(log, 10.0) is None
