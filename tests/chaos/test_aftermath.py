"""What is compared after a chaos run fails when something leaked, and says so in its table."""

from collections import Counter
from dataclasses import replace

import pytest
import yaml

from sidecar.config import load
from tests.chaos.aftermath import Row, process_rows, series_rows, settle
from tests.chaos.census import Process
from tests.chaos.log_lines import UNHANDLED, error_lines
from tests.chaos.report import ends_table, rows_table, words
from tests.chaos.settings import settings

PROCESS = Process(pid=10, files=20, threads=5, rss_kib=50_000)


def unmet(before: Process, warm: Process, after: Process) -> list[str]:
    rows = process_rows({"worker 0": before}, {"worker 0": warm}, {"worker 0": after})
    return [row.what for row in rows if not row.is_met]


def test_a_process_as_before_meets_all() -> None:
    """Also the successor of a killed one, and memory that grew by less than a tenth."""
    successor = replace(PROCESS, pid=11)
    assert not unmet(PROCESS, PROCESS, replace(PROCESS, rss_kib=54_999))
    assert not unmet(PROCESS, successor, replace(successor, files=19))


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"files": 33}, "worker 0: files"),
        ({"threads": 8}, "worker 0: threads"),
        ({"rss_kib": 55_001}, "worker 0: memory, KiB"),
        ({"pid": 12}, "worker 0: pid since the chaos"),
    ],
)
def test_what_leaked_is_named(change: dict[str, int], what: str) -> None:
    """One that grew, and one that died without a fault of ours."""
    assert unmet(PROCESS, PROCESS, replace(PROCESS, **change)) == [what]


def test_memory_is_held_against_the_lower_of_both_warm_ups() -> None:
    """Growth within the chaos counts, and growth after it."""
    grown = replace(PROCESS, pid=11, rss_kib=60_000)
    assert unmet(PROCESS, grown, grown) == ["worker 0: memory, KiB"]
    assert unmet(grown, replace(grown, rss_kib=50_000), grown) == ["worker 0: memory, KiB"]


def test_a_missing_process_is_seen() -> None:
    """A worker that never came back."""
    rows = process_rows({"worker 0": PROCESS}, {"worker 0": PROCESS}, {})
    assert [row.what for row in rows if not row.is_met] == ["processes"]


def test_series_that_came_or_went_are_named() -> None:
    """An instance that left its series behind, or lost them."""
    rows = series_rows(frozenset({"a", "b"}), frozenset({"b", "c"}))
    assert [(row.what.strip(), row.seen) for row in rows if not row.is_met] == [
        ("new", "['c']"),
        ("gone", "['a']"),
    ]


def test_settling_waits_for_the_last_condition_and_gives_up_in_time() -> None:
    """The rows of the last look, met or not."""
    looks = iter([False, False, True])
    assert settle(lambda: [Row("x", "", "", next(looks))], 30)[0].is_met
    assert not settle(lambda: [Row("x", "", "", False)], 0.0)[0].is_met


def test_errors_of_the_log_need_their_reason() -> None:
    """A dead Envoy is one; anything else is shown, equal lines together."""
    log = (
        "2026-01-01 10:00:00,123 ERROR x: Envoy (pid 7) ended; again in 0.1 s\n"
        "2026-01-01 10:00:00,124 ERROR x: exchange 12 broke\n"
        "2026-01-01 10:00:00,125 ERROR x: exchange 13 broke\n"
        "2026-01-01 10:00:00,125 WARNING x: worker 0 ended\n"
    )
    assert list(error_lines(log).values()) == [2]
    assert not UNHANDLED.search(log)
    assert UNHANDLED.search(log + "Traceback (most recent call last):\n")


def test_the_configuration_is_one_that_this_sidecar_takes() -> None:
    """Without the keys that it does not know, which are named."""
    taken, unknown = settings()
    config = load(yaml.safe_dump(taken), {}, {})
    assert config.registration.ttl_s == 3.0
    assert not {"registration", "registration.ttl_s"} & set(unknown)


def test_the_tables_have_every_number() -> None:
    """A row a kind of end, the good ones first; what failed is marked."""
    ends = Counter({("chat", "cut stream"): 2, ("chat", "right"): 3, ("models", "right"): 1})
    lines = [line.split() for line in ends_table(ends).splitlines()]
    assert lines[1:] == [["right", "3", "1", "4"], ["cut", "stream", "2", "2"]]
    assert "FAILED  files" in rows_table("x", [Row.equal("files", 3, 2)])
    assert words(Counter(a=1, b=2)) == "2 b, 1 a"
