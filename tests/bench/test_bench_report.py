"""The tables that are written, and where they go."""

from pathlib import Path

import pytest

from tests.bench.bench_document import BEGIN, END, replaced
from tests.bench.bench_report import describe, number, show
from tests.bench.goals import judge
from tests.bench.samples import Metric, Samples, Spread
from tests.bench.whole_part import CPU_MS, P50_MS, SHARE_MS

DOCUMENT = Path(__file__).parents[2] / "docs" / "performance.md"


def test_a_report_has_ratios_first_and_what_is_added() -> None:
    """6 ms beside 2 of Envoy are 3 times as much; above 1 of the engines alone, 5 and 1."""
    samples = Samples()
    for target, value in {"ours": 6.0, "envoy": 2.0, "direct": 1.0}.items():
        samples.add(0, target, Metric("cell", P50_MS), value)
    for kind, value in {"Envoy": 0.3, "control": 0.5}.items():
        samples.add(0, "ours", Metric("cell", SHARE_MS.format(kind)), value)
    text = describe(samples, judge(samples), "Machine: any", 1, ["ours", "envoy", "direct"])
    ratios, _, numbers = text.partition("### All numbers")
    assert f"| cell | {P50_MS} | 3 |" in ratios
    assert f"| cell | {P50_MS}, added | 5 | 1 | 1 |" in numbers
    assert "| cell | ms a request | 0.3 | - | 0.5 | - |" in numbers
    assert "control" not in ratios
    assert "None: every answer" in text


def test_failures_are_named() -> None:
    """With the target that they are of."""
    samples = Samples()
    samples.add(0, "ours", Metric("cell", CPU_MS), 1.0)
    samples.fail("ours", "cell, round 1: no answers")
    text = describe(samples, [], "", 1, ["ours"])
    assert "- pd-sidecar: cell, round 1: no answers" in text
    assert "None: every answer" not in text


def test_numbers_have_three_digits() -> None:
    """As many as a measurement is worth."""
    assert [number(x) for x in (12345.6, 123.4, 12.34, 0.01234)] == [
        "12346",
        "123",
        "12.3",
        "0.0123",
    ]


def test_a_spread_shows_its_ends() -> None:
    """Unless it is of one round."""
    assert show(Spread(2.0, 1.0, 3.0, 3)) == "2 (1 to 3)"
    assert show(Spread(2.0, 2.0, 2.0, 1)) == "2"
    assert show(None) == "-"


def test_text_goes_between_the_markers_only() -> None:
    """What is around them stays."""
    document = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    assert replaced(document, "new\n") == f"before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"


def test_a_document_without_markers_is_refused() -> None:
    """Rather than overwritten."""
    with pytest.raises(ValueError, match="no <!--"):
        replaced("text", "new")


def test_the_document_has_the_markers() -> None:
    """So `--write` finds them at the end of a run."""
    assert "new" in replaced(DOCUMENT.read_text(), "new")
