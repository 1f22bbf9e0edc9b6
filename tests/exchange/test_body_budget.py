"""Bytes of bodies that one worker holds."""

import pytest

from sidecar.exchange.body_budget import BodyBudget


def test_what_fits_is_taken_and_what_does_not_changes_nothing() -> None:
    """The limit itself fits."""
    budget = BodyBudget(10)
    assert budget.take(4)
    assert budget.take(6)
    assert not budget.take(1)
    assert budget.taken == 10


def test_one_body_alone_has_room_whatever_its_size() -> None:
    """And then nothing else has."""
    budget = BodyBudget(10)
    assert budget.has_room(1000)
    assert budget.take(1000)
    assert not budget.has_room(1)
    assert not budget.take(1)
    budget.give_back(1000)
    assert budget.take(1)


def test_to_ask_for_room_takes_none() -> None:
    """However often."""
    budget = BodyBudget(10)
    assert budget.take(1)
    assert all(budget.has_room(9) for _ in range(3))
    assert budget.taken == 1


def test_more_cannot_be_given_back_than_was_taken() -> None:
    """A count below nothing would let everybody in."""
    budget = BodyBudget(10)
    budget.take(3)
    with pytest.raises(AssertionError, match="more than was taken"):
        budget.give_back(4)


def test_it_shows_its_counts() -> None:
    budget = BodyBudget(10)
    budget.take(3)
    assert repr(budget) == "BodyBudget(3 of 10 bytes)"
