"""The ledger of open exchanges: whatever order records and log entries come in, its counts are the
truth, and every exchange is closed once."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.exchange.ledger import MEMORY_S, PATIENCE_INTERVALS, Closed, Ledger
from sidecar.exchange.reasons import OWN_REPLY, Outcome, Reason
from sidecar.exchange.records import (
    Hello,
    Moved,
    Placed,
    PrefillEnded,
    Record,
    Refused,
    Replied,
    Spare,
)
from sidecar.routing.instance import TransferMode
from sidecar.routing.slots import Slot
from sidecar.wire.access_log import Entry, Trail

REPORT_S = 10.0
PATIENCE_S = PATIENCE_INTERVALS * REPORT_S
P0, P1, D0, D1 = Slot("p:1", 0), Slot("p:1", 1), Slot("d:1", 0), Slot("d:2", 0)
READ, WRITE = TransferMode.READ, TransferMode.WRITE
AT_PREFILL, AT_DECODE = ("prefill", P0), ("decode", D0)


def placed(
    exchange: str = "e",
    *,
    worker: int = 0,
    mode: TransferMode | None = READ,
    prefill: Slot | None = P0,
    decode: Slot | None = D0,
) -> Placed:
    return Placed(
        exchange=exchange,
        worker=worker,
        api="completions",
        model="m",
        is_streaming=True,
        mode=mode,
        prefill=prefill,
        decode=decode,
    )


def prefill_ended(exchange: str = "e", reason: Reason | None = None) -> PrefillEnded:
    return PrefillEnded(exchange=exchange, seconds=0.5, reason=reason, has_kv=reason is None)


def replied(exchange: str = "e", reason: Reason | None = None, **what: object) -> Replied:
    return Replied(
        **({"exchange": exchange, "is_handed_over": reason is None, "reason": reason} | what)
    )


def left(exchange: str = "e") -> Replied:
    """WRITE: its client left, its prefill leg goes on."""
    return replied(exchange, is_handed_over=False, phase="decode", is_prefill_running=True)


def refused(exchange: str = "e") -> Refused:
    reason = Reason.DRAINING
    return Refused(exchange=exchange, api="messages", model="m", is_streaming=False, reason=reason)


def trail(*, prefill: Slot | None = P0, decode: Slot | None = D0) -> Trail:
    return Trail(
        worker=1,
        api="responses",
        model="m",
        is_streaming=True,
        mode=READ,
        prefill=prefill,
        decode=decode,
    )


def entry(
    exchange: str = "e",
    *flags: str,
    status: int = 200,
    is_end: bool = True,
    trail: Trail | None = None,
    reply: str = "",
    upstream: str = "",
    first_byte_s: float | None = 0.5,
) -> Entry:
    return Entry(
        exchange=exchange,
        is_end=is_end,
        status=status,
        flags=frozenset(flags),
        upstream=upstream,
        trail=trail,
        reply=reply,
        total_s=1.0,
        first_byte_s=first_byte_s,
    )


def report(exchange: str = "e", trail: Trail | None = None) -> Entry:
    return entry(exchange, is_end=False, status=0, trail=trail)


def noted(*records: Record) -> Ledger:
    ledger = Ledger(REPORT_S)
    for record in records:
        ledger.note(record, 0.0)
    return ledger


def test_a_read_exchange_holds_prefill_then_decode_then_nothing() -> None:
    """Each slot is given back where its leg ends."""
    ledger = noted(placed())
    assert ledger.in_flight == {AT_PREFILL: 1, AT_DECODE: 1}
    ledger.note(prefill_ended(), 1.0)
    assert ledger.in_flight == {AT_DECODE: 1}
    ledger.note(replied(), 1.0)
    assert ledger.in_flight == {AT_DECODE: 1}
    closed = ledger.report(entry(), 2.0)
    assert closed is not None
    assert (closed.outcome, closed.prefill_s, closed.api) == (Outcome.OK, 0.5, "completions")
    assert ledger.in_flight == {}
    assert len(ledger) == 0


def test_the_workers_last_reply_frees_prefill_at_the_latest() -> None:
    """The end of prefill may have been told to a control process that is gone."""
    assert noted(placed(), replied()).in_flight == {AT_DECODE: 1}


def test_an_aggregated_exchange_holds_its_slot_to_the_answers_end() -> None:
    """Its prefill slot is where it is served, so neither reply nor a lost worker frees it."""
    ledger = noted(placed(mode=None, decode=None), replied())
    assert ledger.in_flight == {AT_PREFILL: 1}
    ledger.report(entry(), 1.0)
    assert ledger.in_flight == {}
    ledger = noted(placed(mode=None, decode=None))
    ledger.worker_lost(0, 1.0)
    assert ledger.in_flight == {AT_PREFILL: 1}


def test_a_retry_replaces_what_the_first_attempt_held() -> None:
    """The second `Placed` of an exchange is not added to the first."""
    ledger = noted(placed(), prefill_ended(reason=Reason.PREFILL_RESET), placed(prefill=P1))
    assert ledger.in_flight == {("prefill", P1): 1, AT_DECODE: 1}


def test_a_move_takes_the_other_decode_slot() -> None:
    """The count and the record both name the new one."""
    ledger = noted(placed(), prefill_ended(), Moved(exchange="e", decode=D1))
    assert ledger.in_flight == {("decode", D1): 1}
    closed = ledger.report(entry(), 1.0)
    assert closed is not None
    assert closed.placed is not None
    assert closed.placed.decode == D1


def test_the_workers_own_answer_frees_both_and_names_the_outcome() -> None:
    """Nothing is held while the end entry is on its way."""
    ledger = noted(placed(), replied(reason=Reason.PREFILL_TIMEOUT))
    assert ledger.in_flight == {}
    closed = ledger.report(entry(status=504, reply="prefill_timeout"), 1.0)
    assert closed is not None
    assert closed.outcome is Outcome.PREFILL_FAILED


def test_a_reason_that_only_the_log_knows_counts() -> None:
    """A worker that died between its answer and the record of it."""
    closed = noted(placed()).report(entry(status=504, reply="prefill_timeout"), 1.0)
    assert closed is not None
    assert closed.reason is Reason.PREFILL_TIMEOUT


def test_an_end_before_its_records_is_remembered() -> None:
    """The late records hold nothing, and a second end closes nothing."""
    ledger = Ledger(REPORT_S)
    assert ledger.report(entry(trail=trail()), 0.0) is not None
    for record in (placed(), prefill_ended(), replied(), refused()):
        ledger.note(record, 1.0)
    assert ledger.in_flight == {}
    assert ledger.report(entry(), 2.0) is None
    assert ledger.report(report(trail=trail()), 2.0) is None
    assert len(ledger) == 0
    assert ledger.sweep(1000.0) == []


def test_a_refusal_is_closed_by_its_end_with_its_own_reason() -> None:
    """It holds nothing; api and model come from the worker's record."""
    closed = noted(refused()).report(entry(status=503, reply="draining"), 1.0)
    assert closed is not None
    assert (closed.outcome, closed.api, closed.placed) == (Outcome.REFUSED, "messages", None)


def test_a_refusal_whose_end_never_comes_is_counted_all_the_same() -> None:
    """How it ended is known; it is closed when its memory is over, once."""
    ledger = noted(refused())
    assert ledger.sweep(MEMORY_S) == []
    (closed,) = ledger.sweep(MEMORY_S + 1)
    assert (closed.outcome, closed.entry) == (Outcome.REFUSED, None)
    assert ledger.report(entry(status=503), MEMORY_S + 2) is None


def test_what_envoy_refused_alone_is_counted_and_never_deduplicated() -> None:
    """Without an exchange id nothing tells two of them apart."""
    ledger = Ledger(REPORT_S)
    for _ in range(2):
        closed = ledger.report(entry("", "UH", status=503), 0.0)
        assert closed is not None
        assert closed.outcome is Outcome.REFUSED
    assert ledger.report(report(""), 0.0) is None


def test_an_exchange_that_no_report_names_is_lost() -> None:
    """After two and a half intervals; a report in between puts it off."""
    ledger = noted(placed(), prefill_ended(), replied())
    assert ledger.sweep(PATIENCE_S) == []
    ledger.report(report(), PATIENCE_S)
    assert ledger.sweep(2 * PATIENCE_S) == []
    (closed,) = ledger.sweep(2 * PATIENCE_S + 1)
    assert closed.outcome is Outcome.LOST
    assert ledger.in_flight == {}
    assert ledger.report(entry(), 2 * PATIENCE_S + 2) is None


def test_an_exchange_that_its_worker_still_holds_is_never_lost() -> None:
    """Prefill may take an hour, in which Envoy names it, but no report is needed."""
    ledger = noted(placed())
    assert ledger.sweep(3600.0) == []
    assert ledger.in_flight == {AT_PREFILL: 1, AT_DECODE: 1}


def test_a_lost_worker_frees_prefill_and_leaves_the_rest_to_the_log() -> None:
    """Only its own; the log ends them, or nothing does and they are lost."""
    ledger = noted(placed("a", worker=0), placed("b", worker=1))
    ledger.worker_lost(0, 5.0)
    assert ledger.in_flight == {AT_PREFILL: 1, AT_DECODE: 2}
    assert [c.placed and c.placed.exchange for c in ledger.sweep(5 + PATIENCE_S + 1)] == ["a"]
    assert ledger.in_flight == {AT_PREFILL: 1, AT_DECODE: 1}


def test_a_dead_envoy_closes_all() -> None:
    """One Envoy for each sidecar: every exchange was its own."""
    ledger = noted(placed("a"), placed("b"), replied("b"))
    assert [c.outcome for c in ledger.envoy_gone(1.0)] == [Outcome.LOST] * 2
    assert ledger.in_flight == {}
    ledger.note(replied("a"), 2.0)
    assert len(ledger) == 0


@pytest.mark.parametrize(
    ("left", "held"),
    [(trail(), {AT_DECODE: 1}), (trail(decode=None), {AT_PREFILL: 1})],
)
def test_an_unknown_exchange_that_is_named_is_adopted(
    left: Trail, held: dict[tuple[str, Slot], int]
) -> None:
    """After a restart, with the slot where its answer runs; its end closes it with the trail's
    words."""
    ledger = Ledger(REPORT_S)
    assert ledger.report(report(trail=left), 0.0) is None
    assert ledger.in_flight == held
    found = ledger.find("e")
    assert found is not None
    assert found.is_adopted
    closed = ledger.report(entry(trail=left), 1.0)
    assert closed is not None
    assert (closed.api, closed.outcome) == ("responses", Outcome.OK)
    assert ledger.in_flight == {}
    assert ledger.prompt_bytes == {}


def test_a_worker_that_knows_an_adopted_exchange_corrects_it() -> None:
    """Its queued records come after the adoption and count once."""
    ledger = Ledger(REPORT_S)
    ledger.report(report(trail=trail()), 0.0)
    for record in (placed(), prefill_ended(), replied()):
        ledger.note(record, 1.0)
    assert ledger.in_flight == {AT_DECODE: 1}


def test_a_report_without_a_trail_adopts_nothing() -> None:
    """The exchange has not been placed: nothing is held."""
    ledger = Ledger(REPORT_S)
    ledger.report(report(), 0.0)
    assert len(ledger) == 0


def test_busy_addresses_are_those_of_held_slots() -> None:
    """What an instance may not leave the endpoint list for."""
    assert noted(placed(), prefill_ended()).busy_addresses() == {"d:1"}


# --- prefill without its client


def test_a_prefill_leg_that_runs_on_holds_its_slot_over_the_exchanges_end() -> None:
    """Decode's slot is free at once, prefill's when the leg ends; the exchange is closed once."""
    ledger = noted(placed(mode=WRITE), left())
    assert ledger.in_flight == {AT_PREFILL: 1}
    closed = ledger.report(entry("e", "DC", status=0), 1.0)
    assert closed is not None
    assert closed.outcome is Outcome.CANCELLED
    assert ledger.in_flight == {AT_PREFILL: 1}
    assert (len(ledger), [e.placed.exchange for e in ledger]) == (1, ["e"])
    assert ledger.sweep(1.0 + 10 * PATIENCE_S) == []
    ledger.note(prefill_ended(), 2.0)
    assert (ledger.in_flight, len(ledger)) == ({}, 0)


def test_a_prefill_leg_that_ends_before_the_exchange_does_is_over() -> None:
    """The end entry then finds nothing to keep."""
    ledger = noted(placed(mode=WRITE), left(), prefill_ended())
    assert ledger.in_flight == {}
    ledger.report(entry("e", "DC", status=0), 1.0)
    assert len(ledger) == 0


@pytest.mark.parametrize("has_ended", [False, True])
def test_a_lost_worker_ends_the_legs_that_ran_on(has_ended: bool) -> None:
    """They died with it."""
    ledger = noted(placed(mode=WRITE), left())
    if has_ended:
        ledger.report(entry("e", "DC", status=0), 1.0)
    ledger.worker_lost(0, 2.0)
    assert ledger.in_flight == {}


def test_a_workers_greeting_says_all_that_still_runs_on() -> None:
    """What it does not name has ended while nobody listened; what it names is held."""
    ledger = noted(placed("gone", mode=WRITE), left("gone"))
    ledger.report(entry("gone", "DC", status=0), 1.0)
    running = placed("on", mode=WRITE, prefill=P1)
    hello = Hello(worker=0, pid=1, open=(placed("open"),), running_on=(running,))
    ledger.greet(hello, 2.0)
    assert ledger.in_flight == {AT_PREFILL: 1, AT_DECODE: 1, ("prefill", P1): 1}
    ledger.note(prefill_ended("on"), 3.0)
    assert ledger.in_flight == {AT_PREFILL: 1, AT_DECODE: 1}


def test_a_greeting_before_its_placement_holds_prefill_once() -> None:
    """What was queued while control was away comes after it."""
    ledger = Ledger(REPORT_S)
    running = placed(mode=WRITE)
    ledger.greet(Hello(worker=0, pid=1, running_on=(running,)), 1.0)
    for record in (running, left()):
        ledger.note(record, 2.0)
    assert ledger.in_flight == {AT_PREFILL: 1}
    ledger.note(prefill_ended(), 3.0)
    ledger.report(entry("e", "DC", status=0), 3.0)
    assert (ledger.in_flight, len(ledger)) == ({}, 0)


# --- who served, and what was left


@pytest.mark.parametrize("is_reported", [False, True])
def test_the_log_says_whether_the_spare_host_serves(is_reported: bool) -> None:
    """The slot that is held, and that the end names, is the one of Envoy's upstream address."""
    spare = Spare(D1, "10.0.0.2:8000")
    ledger = noted(placed(), prefill_ended(), replied(spare=spare))
    if is_reported:
        ledger.report(entry(is_end=False, upstream="10.0.0.2:8000"), 1.0)
        assert ledger.in_flight == {("decode", D1): 1}
    closed = ledger.report(entry(upstream="10.0.0.2:8000"), 2.0)
    assert closed is not None
    assert closed.placed is not None
    assert closed.placed.decode == D1
    assert ledger.in_flight == {}


def test_a_spare_that_was_not_needed_serves_nothing() -> None:
    """The chosen host did."""
    ledger = noted(placed(), prefill_ended(), replied(spare=Spare(D1, "10.0.0.2:8000")))
    closed = ledger.report(entry(upstream="10.0.0.1:8000"), 2.0)
    assert closed is not None
    assert closed.placed is not None
    assert closed.placed.decode == D0


@pytest.mark.parametrize("mode", [READ, TransferMode.WRITE])
@pytest.mark.parametrize(
    ("ended", "log", "is_orphaned"),
    [
        (prefill_ended(), entry("e", "UF", status=503, upstream="10.0.0.1:1"), True),
        (prefill_ended(), entry("e", "UH", status=503), True),
        (prefill_ended(), entry("e", "DC", status=0), True),
        (prefill_ended(), entry(upstream="10.0.0.1:1"), False),
        (prefill_ended(), entry("e", "DC", upstream="10.0.0.1:1"), False),
        (prefill_ended("e", Reason.PREFILL_RESET), entry("e", "DC", status=0), False),
        (PrefillEnded(exchange="e", seconds=None, reason=None), entry("e", "DC"), False),
        (PrefillEnded(exchange="e", seconds=0.5, reason=None), entry("e", "DC"), False),
        (prefill_ended(), entry("e", "UO", status=503, upstream="10.0.0.1:1"), True),
        (prefill_ended(), entry("e", "UH", status=503, upstream="10.0.0.1:1"), True),
    ],
)
def test_kv_is_orphaned_that_prefill_committed_and_no_decode_was_reached_for(
    mode: TransferMode, ended: PrefillEnded, log: Entry, is_orphaned: bool
) -> None:
    """Only what is certain: a decode that was reached may have fetched it."""
    closed = noted(placed(mode=mode), ended, replied()).report(log, 1.0)
    assert closed is not None
    assert closed.orphaned_since == (0.0 if is_orphaned else None)


# --- any order

NAMES = ("a", "b", "c")
slots_p, slots_d = st.sampled_from([P0, P1]), st.sampled_from([D0, D1])
names = st.sampled_from(NAMES)
modes = st.sampled_from([TransferMode.READ, TransferMode.WRITE, None])
anything = st.one_of(
    st.builds(
        lambda e, w, m, p, d: placed(e, worker=w, mode=m, prefill=p, decode=d),
        names,
        st.integers(0, 1),
        modes,
        slots_p,
        st.none() | slots_d,
    ),
    st.builds(prefill_ended, names, st.sampled_from([None, Reason.PREFILL_RESET])),
    st.builds(lambda e, d: Moved(exchange=e, decode=d), names, slots_d),
    st.builds(replied, names, st.sampled_from([None, Reason.PREFILL_ERROR])),
    st.builds(left, names),
    st.builds(lambda e: replied(e, spare=Spare(D1, "spare")), names),
    st.builds(lambda e: entry(e, upstream="spare"), names),
    st.builds(refused, names),
    st.builds(lambda e: entry(e, trail=trail()), names),
    st.builds(lambda e, d: report(e, trail(decode=d)), names, st.none() | slots_d),
    st.builds(report, names),
    st.sampled_from(["worker 0 lost", "worker 1 lost", "envoy gone", "sweep"]),
    st.floats(0.1, 40.0),
)


@given(st.lists(anything, max_size=40))
def test_in_any_order_counts_equal_what_is_open_and_nothing_is_closed_twice(
    happenings: list[object],
) -> None:
    """Never negative, equal to the sum over open exchanges, zero at the end, closed once each."""
    ledger, now = Ledger(REPORT_S), 0.0
    closed: list[Closed] = []
    ended_at: dict[str, float] = {}

    def close(some: list[Closed]) -> None:
        closed.extend(some)

    for what in happenings:
        if isinstance(what, float):
            now += what
        elif isinstance(what, Entry):
            one = ledger.report(what, now)
            if one is not None:
                assert now - ended_at.get(what.exchange, -1e9) > MEMORY_S, "closed twice"
                ended_at[what.exchange] = now
        elif what == "sweep":
            close(ledger.sweep(now))
        elif what == "envoy gone":
            close(ledger.envoy_gone(now))
        elif isinstance(what, str):
            ledger.worker_lost(int(what[7]), now)
        else:
            ledger.note(what, now)
        truth = Counter(
            (role, slot)
            for one in ledger
            for role, slot in (("prefill", one.prefill), ("decode", one.decode))
            if slot is not None
        )
        assert ledger.in_flight == truth
        assert min(ledger.in_flight.values(), default=1) > 0
        for one in closed:
            if one.placed is not None:
                key = one.placed.exchange
                assert now - ended_at.get(key, -1e9) > MEMORY_S, "lost after it had ended"
                ended_at[key] = now
        closed.clear()
    open_before = set(ledger._open)
    assert {c.placed.exchange for c in ledger.envoy_gone(now) if c.placed} == open_before
    for worker in (0, 1):  # and with them what goes on without its client
        ledger.worker_lost(worker, now)
    assert ledger.in_flight == {}
    assert len(ledger) == 0


class Life:
    """One exchange as it happens, by its own simple count: the truth to compare with."""

    def __init__(self, name: str, script: list[Record]) -> None:
        self.name, self.script = name, script
        self.holds: dict[str, Slot] = {}

    def step(self) -> Record | None:
        """The next record, its effect on the truth applied; None: only the end is left."""
        if not self.script:
            return None
        record = self.script.pop(0)
        if isinstance(record, Placed):
            both = {"prefill": record.prefill, "decode": record.decode}
            self.holds = {role: slot for role, slot in both.items() if slot is not None}
        elif isinstance(record, PrefillEnded):
            self.holds.pop("prefill", None)
        elif isinstance(record, Moved):
            self.holds["decode"] = record.decode
        elif isinstance(record, Replied) and not record.is_handed_over:
            self.holds = {}
        return record


def scripts(name: str) -> list[list[Record]]:
    return [
        [placed(name), prefill_ended(name), replied(name)],
        [placed(name), prefill_ended(name), Moved(exchange=name, decode=D1), replied(name)],
        [
            placed(name),
            prefill_ended(name, Reason.PREFILL_RESET),
            placed(name, prefill=P1, decode=D1),
            prefill_ended(name),
            replied(name),
        ],
        [placed(name), prefill_ended(name), replied(name, Reason.PREFILL_ERROR)],
        [placed(name, mode=None, decode=None), replied(name)],
        [refused(name)],
    ]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=6), st.data())
def test_exchanges_side_by_side_are_counted_right_at_every_moment(
    kinds: list[int], data: st.DataObject
) -> None:
    """However their records interleave, with reports in between, and each is closed once."""
    lives = [Life(f"e{i}", scripts(f"e{i}")[kind]) for i, kind in enumerate(kinds)]
    ledger, now, ends = Ledger(REPORT_S), 0.0, Counter[str]()
    while lives:
        now += 0.1
        life = data.draw(st.sampled_from(lives))
        if data.draw(st.booleans()):
            ledger.report(report(life.name), now)
            assert ledger.sweep(now) == []
        record = life.step()
        if record is not None:
            ledger.note(record, now)
        else:
            assert ledger.report(entry(life.name), now) is not None
            ends[life.name] += 1
            lives.remove(life)
        truth = Counter((role, slot) for one in lives for role, slot in one.holds.items())
        assert ledger.in_flight == truth
    assert set(ends.values()) == {1}
    assert ledger.sweep(now + 1000) == []


def test_the_sidecars_answers_about_itself_are_no_exchanges() -> None:
    """Health checks would drown the traffic."""
    assert Ledger(REPORT_S).report(entry(reply=OWN_REPLY), 0.0) is None
