"""Where a choice ends and what of it is shown: pure, token by token."""

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.sim.choice_run import ChoiceRun
from sidecar.sim.sampling import Sampling
from sidecar.sim.words import EOS, Token, tokens_of, words_of


def run_of(sampling: Sampling, eos_at: int | None = None, count: int | None = None) -> ChoiceRun:
    tokens = tokens_of(b"seed")
    return ChoiceRun(islice(tokens, count) if count is not None else tokens, sampling, eos_at)


def words(count: int) -> str:
    return "".join(islice(words_of(b"seed"), count))


@pytest.mark.parametrize(
    ("settings", "eos_at", "tokens", "shown", "finish"),
    [
        ({}, None, 10, 10, "length"),
        ({}, 4, 4, 3, "stop"),
        ({}, 1, 1, 0, "stop"),
        ({}, 10, 10, 9, "stop"),
        ({}, 11, 10, 10, "length"),
        ({"ignore_eos": True}, 4, 10, 10, "length"),
        ({"min_tokens": 3}, 4, 4, 3, "stop"),
        ({"min_tokens": 4}, 4, 5, 4, "stop"),
        ({"min_tokens": 10}, 4, 10, 10, "length"),
    ],
)
def test_the_end_of_sequence_comes_where_it_is_due(settings, eos_at, tokens, shown, finish) -> None:
    """It is a token without text; min_tokens masks it, ignore_eos forbids it."""
    run = run_of(Sampling(max_tokens=10, **settings), eos_at)
    run.run()
    assert (run.count, run.text, run.finish) == (tokens, words(shown), finish)
    assert run.stop_reason is None


def test_a_finite_sequence_ends_by_itself() -> None:
    run = run_of(Sampling(max_tokens=10), count=4)
    run.run()
    assert (run.text, run.finish, run.tokens[-1]) == (words(4), "stop", EOS)


def test_a_stop_string_cuts_the_text_and_is_the_reason() -> None:
    third = words(3).split()[2]
    run = run_of(Sampling(max_tokens=10, stop=("never", third)))
    run.run()
    assert (run.text, run.finish, run.stop_reason) == (words(2) + " ", "stop", third)
    assert run.count == 3


def test_a_stop_string_may_be_kept() -> None:
    part = words(3).split()[2][:2]
    run = run_of(Sampling(max_tokens=10, stop=(" " + part,), include_stop=True))
    run.run()
    assert run.text == words(2) + " " + part


def test_a_stop_string_across_tokens_is_found() -> None:
    text = words(4)
    at = text.index(" ") - 2
    stop = text[at : at + 5]
    run = run_of(Sampling(max_tokens=10, stop=(stop,)))
    run.run()
    assert (run.text, run.stop_reason) == (text[:at], stop)


def test_of_two_stop_strings_the_one_that_is_complete_first_counts() -> None:
    tokens = iter([Token(1, "ab"), Token(2, "cde")])
    run = ChoiceRun(tokens, Sampling(max_tokens=10, stop=("de", "cd")), None)
    run.run()
    assert (run.text, run.stop_reason) == ("ab", "cd")


def test_min_tokens_masks_stop_strings_too() -> None:
    first, fourth = words(4).split()[0], words(4).split()[3]
    run = run_of(Sampling(max_tokens=10, stop=(first, fourth), min_tokens=2))
    run.run()
    assert (run.count, run.stop_reason) == (4, fourth)


def test_a_stop_string_at_the_limit_is_a_stop() -> None:
    run = run_of(Sampling(max_tokens=2, stop=(words(2).split()[1],)))
    run.run()
    assert run.finish == "stop"


@pytest.mark.parametrize("include_stop", [False, True])
def test_a_stop_token_ends_it_and_is_the_reason(include_stop) -> None:
    second = next(islice(tokens_of(b"seed"), 1, None))
    sampling = Sampling(
        max_tokens=10, stop_token_ids=frozenset((second.id,)), include_stop=include_stop
    )
    run = run_of(sampling)
    run.run()
    assert (run.finish, run.stop_reason) == ("stop", second.id)
    assert run.text == words(2 if include_stop else 1)


@given(
    st.lists(st.sampled_from(["a", "b", "ab", "aab", " "]), max_size=20),
    st.lists(st.sampled_from(["ab", "ba", "aaa", "b a", "zz"]), min_size=1, max_size=3),
    st.booleans(),
)
def test_what_was_shown_is_never_taken_back(texts, stops, include_stop) -> None:
    """The steps' texts are the run's text, so nothing of a stop string was sent too early."""
    sampling = Sampling(max_tokens=15, stop=tuple(stops), include_stop=include_stop)
    whole = "".join(texts[:15])
    run = ChoiceRun(iter([Token(1, text) for text in texts]), sampling, None)
    shown = ""
    while run.finish is None:
        shown += run.step().text
    assert shown == run.text
    assert whole.startswith(shown)
    found = [stop for stop in stops if stop in whole]
    assert bool(found) == isinstance(run.stop_reason, str)
    if not include_stop:
        assert not any(stop in shown for stop in stops)
