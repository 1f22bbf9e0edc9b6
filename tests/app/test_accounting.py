"""What the ledger says, as metrics: each request once, each slot under its own name."""

from prometheus_client import CollectorRegistry

from sidecar.app.accounting import EARLY_S, Accounting
from sidecar.exchange.ledger import Ledger
from sidecar.exchange.reasons import Reason
from sidecar.exchange.records import (
    Batch,
    Moved,
    Placed,
    PrefillEnded,
    Record,
    Refused,
    Replied,
    TransferFailed,
)
from sidecar.routing.instance import TransferMode
from sidecar.routing.slots import Slot
from sidecar.routing.standing import Evidence, Failure
from sidecar.telemetry.metrics import Metrics
from sidecar.wire.access_log import Entry

P, P2, D, D2 = Slot("p:1", 3), Slot("p:2", 0), Slot("d:1", 0), Slot("d:2", 0)
LIMIT_S = 10.0
"""of the prefill phase"""
READ, WRITE = TransferMode.READ, TransferMode.WRITE
ON_P = {"instance": "p:1", "dp_rank": "3"}
ON_D = {"instance": "d:1", "dp_rank": "0"}


class Books:
    """An Accounting with its registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.accounting = Accounting(Ledger(10.0), Metrics(self.registry, "0"), LIMIT_S)

    def note(self, *records: Record) -> "Books":
        self.accounting.batch(Batch(records=records), 0.0)
        return self

    def value(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"pd_sidecar_{name}", labels) or 0.0

    def end(self, *flags: str, status: int = 200, upstream: str = "d:1", name: str = "e") -> None:
        entry = Entry(
            exchange=name,
            is_end=True,
            status=status,
            flags=frozenset(flags),
            upstream=upstream,
            trail=None,
            reply="",
            total_s=3.0,
            first_byte_s=2.0,
        )
        self.accounting.entry(entry, 1.0)


def placed(
    mode: TransferMode | None = READ, prefill: Slot = P, decode: Slot | None = D, name: str = "e"
) -> Placed:
    return Placed(
        exchange=name,
        worker=0,
        api="completions",
        model="m",
        is_streaming=True,
        mode=mode,
        prefill=prefill,
        decode=decode,
        placement_s=0.001,
    )


def prefill_ended(seconds: float | None = 1.0, reason: Reason | None = None) -> PrefillEnded:
    return PrefillEnded(exchange="e", seconds=seconds, reason=reason)


def replied(**what: object) -> Replied:
    return Replied(exchange="e", **({"is_handed_over": True} | what))


def test_a_read_request_feeds_every_family_once() -> None:
    """Placement, prefill, gap, overhead, decode (without prefill's time), duration, first token."""
    books = Books().note(placed(), prefill_ended(), replied(gap_s=0.01, overhead_s=0.002))
    books.end()
    value = books.value
    assert value("requests_total", model_name="m", api="completions", outcome="ok") == 1
    assert value("placements_total", role="prefill", **ON_P) == 1
    assert value("placements_total", role="decode", **ON_D) == 1
    assert value("placement_seconds_sum") == 0.001
    assert value("prefill_duration_seconds_sum", **ON_P) == 1.0
    assert value("prefill_to_decode_gap_seconds_sum", **ON_P) == 0.01
    assert value("routing_overhead_seconds_sum") == 0.002
    assert value("decode_duration_seconds_sum", **ON_D) == 2.0
    streamed = {"model_name": "m", "streaming": "true"}
    assert value("request_duration_seconds_sum", **streamed) == 3.0
    assert value("time_to_first_token_seconds_sum", **streamed) == 2.0
    assert value("orphaned_transfers_total", instance="p:1") == 0
    assert books.accounting.outcomes == {"ok": 1}


def test_an_end_that_overtook_its_records_waits_for_them() -> None:
    """Every measurement is there all the same, and the slots are free."""
    books = Books()
    books.end()
    assert books.value("requests_total", model_name="m", api="completions", outcome="ok") == 0
    books.note(placed(), prefill_ended())
    books.note(replied(gap_s=0.01, overhead_s=0.002))
    assert books.value("requests_total", model_name="m", api="completions", outcome="ok") == 1
    for family in ("prefill_duration_seconds_count", "prefill_to_decode_gap_seconds_count"):
        assert books.value(family, **ON_P) == 1
    assert books.value("decode_duration_seconds_count", **ON_D) == 1
    assert not books.accounting.ledger.in_flight
    books.accounting.sweep(1.0 + EARLY_S + 0.1)
    assert books.value("requests_total", model_name="m", api="completions", outcome="ok") == 1


def test_an_end_whose_records_never_come_is_closed() -> None:
    """The worker died with them: closed after a while, once, and the slot is free."""
    books = Books().note(placed())
    books.end(status=503)
    books.accounting.ledger.worker_lost(0, 1.0)
    books.accounting.sweep(1.0 + EARLY_S + 0.1)
    books.accounting.sweep(1.0 + EARLY_S + 0.2)
    labels = {"model_name": "m", "api": "completions", "outcome": "refused"}
    assert books.value("requests_total", **labels) == 1
    assert books.value("refusals_total", reason="no_worker") == 1
    assert not books.accounting.ledger.in_flight


def test_write_decodes_beside_prefill_and_has_no_gap() -> None:
    """Its decode duration is the whole; the gap is READ's alone."""
    books = Books().note(placed(WRITE), prefill_ended(), replied(gap_s=0.5))
    books.end()
    assert books.value("decode_duration_seconds_sum", **ON_D) == 3.0
    assert books.value("prefill_to_decode_gap_seconds_count", **ON_P) == 0


def test_a_retry_counts_at_the_instance_that_failed() -> None:
    """With the reason; both attempts are placements."""
    books = Books().note(placed(), prefill_ended(reason=Reason.PREFILL_RESET), placed(prefill=P2))
    assert books.value("prefill_retries_total", instance="p:1", reason="prefill_reset") == 1
    assert books.value("prefill_duration_seconds_count", **ON_P) == 0
    assert books.accounting.placed[("prefill", P2)] == 1


def test_recomputed_is_a_second_placement_after_a_good_prefill() -> None:
    """Aggregated from the start is none."""
    books = Books().note(placed(), prefill_ended(), placed(None, decode=None))
    assert books.value("recomputed_requests_total", instance="p:1") == 1
    assert (
        Books().note(placed(None, decode=None)).value("recomputed_requests_total", instance="p:1")
        == 0
    )


def test_a_move_counts_at_the_decode_slot_that_served() -> None:
    """The placement and the duration carry the new slot's name."""
    books = Books().note(placed(), prefill_ended(), Moved(exchange="e", decode=D2), replied())
    books.end(upstream="d:2")
    on_d2 = {"instance": "d:2", "dp_rank": "0"}
    assert books.value("placements_total", role="decode", **on_d2) == 1
    assert books.value("decode_duration_seconds_count", **on_d2) == 1
    assert books.value("decode_duration_seconds_count", **ON_D) == 0


def test_transfers_left_and_freed_are_counted_at_their_instance() -> None:
    """A worker's word on decode's blocks, in WRITE."""
    books = Books().note(
        TransferFailed(decode=D, is_freed=True), TransferFailed(decode=D2, is_freed=False)
    )
    assert books.value("released_transfers_total", instance="d:1") == 1
    assert books.value("orphaned_transfers_total", instance="d:1") == 0
    assert books.value("orphaned_transfers_total", instance="d:2") == 1


def test_a_leg_that_runs_on_without_its_client_is_measured_all_the_same() -> None:
    """Its slot, its duration and what it says of its instance: the exchange has ended before."""
    books = Books()
    heard: list[Evidence] = []
    books.accounting.on_evidence = heard.append
    books.note(
        placed(WRITE), replied(is_handed_over=False, phase="decode", is_prefill_running=True)
    )
    books.end("DC", status=0)
    assert books.accounting.outcomes == {"cancelled": 1}
    (shown,) = books.accounting.exchanges(2.0)
    assert (shown["phase"], shown["holds"]) == ("prefill_alone", ["prefill"])
    books.note(prefill_ended())
    assert books.value("prefill_duration_seconds_count", **ON_P) == 1
    assert [(e.where, e.failure) for e in heard] == [("p:1", None)]
    assert not books.accounting.ledger.in_flight
    assert books.accounting.exchanges(2.0) == []


def test_a_client_that_left_is_counted_once_by_where_it_left() -> None:
    """The worker's word first; else decode if it was placed, else the upload."""
    told = Books().note(
        placed(), prefill_ended(None), replied(is_handed_over=False, phase="prefill")
    )
    told.end("DC", status=0)
    streaming = Books().note(placed(), prefill_ended(), replied())
    streaming.end("DC")
    uploading = Books()
    uploading.end("DC", status=0)
    uploading.accounting.sweep(1.0 + EARLY_S + 0.1)
    for books, phase in ((told, "prefill"), (streaming, "decode"), (uploading, "upload")):
        assert {
            p: books.value("cancellations_total", phase=p) for p in ("upload", "prefill", "decode")
        } == {"upload": 0, "prefill": 0, "decode": 0} | {phase: 1}
        assert books.accounting.outcomes == {"cancelled": 1}


def test_refusals_are_counted_by_reason_whether_placed_or_not() -> None:
    """And the request once, by its outcome."""
    reason = Reason.DRAINING
    books = Books().note(
        Refused(exchange="e", api="messages", model="m", is_streaming=False, reason=reason)
    )
    books.end(status=503)
    assert books.value("refusals_total", reason="draining") == 1
    assert books.value("requests_total", model_name="m", api="messages", outcome="refused") == 1
    late = Books().note(placed(), replied(is_handed_over=False, reason=Reason.PREFILL_TIMEOUT))
    late.end(status=504)
    assert late.value("refusals_total", reason="prefill_timeout") == 1
    assert late.accounting.outcomes == {"prefill_failed": 1}


def test_a_lost_exchange_is_counted_and_has_no_times() -> None:
    """Nobody saw its end."""
    books = Books().note(placed(), prefill_ended(), replied())
    for closed in books.accounting.ledger.sweep(1000.0):
        books.accounting.close(closed)
    assert books.value("lost_exchanges_total") == 1
    assert books.value("requests_total", model_name="m", api="completions", outcome="lost") == 1
    assert books.value("decode_duration_seconds_count", **ON_D) == 0


def test_what_a_worker_dropped_or_picked_without_the_lock_is_counted() -> None:
    """From its batches."""
    books = Books()
    books.accounting.batch(Batch(records=(), dropped=3, unlocked_picks=2), 0.0)
    assert (books.value("records_dropped_total"), books.value("unlocked_picks_total")) == (3, 2)


def test_a_forgotten_instance_leaves_no_count() -> None:
    """Neither a series nor a row: pods come and go for ever."""
    books = Books().note(placed(), prefill_ended(), replied())
    books.end()
    books.accounting.forget_instance("d:1")
    books.accounting.forget_instance("p:1")
    assert books.accounting.placed == {}
    assert books.value("placements_total", role="decode", **ON_D) == 0


def test_open_exchanges_are_shown_with_what_they_hold() -> None:
    """For `/exchanges`: phase, slots, age."""
    books = Books().note(placed(), placed(None, decode=None, name="f"))
    first, second = books.accounting.exchanges(5.0)
    assert first["exchange"] == "e"
    assert first["age_s"] == 5.0
    assert (first["phase"], first["holds"]) == ("prefill", ["prefill", "decode"])
    assert (first["prefill"], first["decode"], first["mode"]) == ("p:1#3", "d:1#0", "READ")
    assert (second["mode"], second["decode"]) == ("aggregated", None)
    books.note(prefill_ended(), replied())
    assert books.accounting.exchanges(5.0)[0]["phase"] == "decode"


def test_each_prefill_leg_is_evidence_of_the_instance_it_ran_on() -> None:
    """The first attempt's failure and the second one's success, each with its own instance and
    the time it was placed; a closed leg is none, nor one that got half the time."""
    books = Books()
    told: list[Evidence] = []
    books.accounting.on_evidence = told.append
    books.accounting.note(placed(), 1.0)
    books.accounting.note(prefill_ended(0.5, Reason.PREFILL_REFUSED), 2.0)
    books.accounting.note(placed(prefill=P2), 3.0)
    books.accounting.note(prefill_ended(0.5), 4.0)
    books.accounting.note(placed(name="left"), 5.0)
    closed = PrefillEnded(exchange="left", seconds=None, reason=None)
    books.accounting.note(closed, 6.0)
    books.accounting.note(placed(prefill=P2), 7.0)
    late = prefill_ended(LIMIT_S / 2, Reason.PREFILL_TIMEOUT)
    books.accounting.note(late, 8.0)
    assert told == [
        Evidence(where="p:1", failure=Failure.REFUSED, placed_at=1.0),
        Evidence(where="p:2", failure=None, placed_at=3.0),
    ]
