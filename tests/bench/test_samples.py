"""Comparisons are made within a round, and only then over the rounds."""

import pytest

from tests.bench.samples import Metric, Samples, Spread, spread_of

RATE = Metric("cell", "requests/s")


def samples_of(**rounds: list[float]) -> Samples:
    """The rounds of each target, of one metric."""
    samples = Samples()
    for target, values in rounds.items():
        for number, value in enumerate(values):
            samples.add(number, target, RATE, value)
    return samples


def test_a_ratio_is_the_median_of_the_rounds_ratios() -> None:
    """Not the ratio of medians, which would be 2 here."""
    samples = samples_of(ours=[1.0, 2.0, 9.0], envoy=[1.0, 1.0, 3.0])
    assert samples.ratio(RATE, "ours", "envoy") == Spread(2.0, 1.0, 3.0, 3)
    samples = samples_of(ours=[10.0, 2.0, 1.0], envoy=[1.0, 2.0, 5.0])
    assert samples.ratio(RATE, "ours", "envoy") == Spread(1.0, 0.2, 10.0, 3)


def test_a_difference_is_taken_round_by_round() -> None:
    """5-1, 7-2, 9-6: the median is 4."""
    samples = samples_of(ours=[5.0, 7.0, 9.0], direct=[1.0, 2.0, 6.0])
    assert samples.difference(RATE, "ours", "direct") == Spread(4.0, 3.0, 5.0, 3)


def test_a_round_that_one_of_them_lacks_does_not_count() -> None:
    """Two rounds here, one there: one ratio."""
    samples = samples_of(ours=[4.0, 100.0], envoy=[2.0])
    assert samples.ratio(RATE, "ours", "envoy") == Spread(2.0, 2.0, 2.0, 1)


@pytest.mark.parametrize("peer", ["envoy", "nobody"])
def test_nothing_to_compare_with_is_none(peer: str) -> None:
    """A peer that is 0 or was not measured gives no ratio."""
    samples = samples_of(ours=[4.0], envoy=[0.0])
    assert samples.ratio(RATE, "ours", peer) is None


def test_no_values_have_no_spread() -> None:
    """Rather than a median of nothing."""
    assert spread_of([]) is None
