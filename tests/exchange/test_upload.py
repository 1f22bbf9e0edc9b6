"""What one body takes of the budget on its way, when it is there, and at the end."""

import pytest

from sidecar.exchange.body_budget import ON_THE_WAY_BYTES, BodyBudget
from sidecar.exchange.upload import Upload
from tests.exchange.exchange_driver import headers

LIMIT = 10 * ON_THE_WAY_BYTES


@pytest.fixture
def budget() -> BodyBudget:
    """With another body in it, as one alone always has room."""
    budget = BodyBudget(LIMIT)
    budget.take(1)
    return budget


@pytest.mark.parametrize(
    ("length", "counted"),
    [
        ("0", 0),
        ("7", 7),
        (str(ON_THE_WAY_BYTES + 1), ON_THE_WAY_BYTES),
        ("x", ON_THE_WAY_BYTES),
        ("", ON_THE_WAY_BYTES),
    ],
)
def test_on_its_way_a_body_counts_little(budget: BodyBudget, length: str, counted: int) -> None:
    """What it declares, but no more than ON_THE_WAY_BYTES; that, if it declares nothing."""
    assert Upload(budget).expect(headers(content_length=length))
    assert budget.taken == 1 + counted


def test_what_declares_more_than_there_is_room_for_is_refused(budget: BodyBudget) -> None:
    """Though it would count little as yet; and then it holds nothing."""
    upload = Upload(budget)
    assert not upload.expect(headers(content_length=str(LIMIT)))
    assert budget.taken == 1
    upload.release()
    assert budget.taken == 1


def test_when_it_is_there_it_counts_what_it_has(budget: BodyBudget) -> None:
    """In place of what it counted on its way."""
    upload = Upload(budget)
    assert upload.expect(headers())
    assert upload.arrived(LIMIT - 1)
    assert budget.taken == LIMIT


def test_a_body_that_turns_out_too_large_holds_nothing(budget: BodyBudget) -> None:
    """Not even what it counted on its way."""
    upload = Upload(budget)
    assert upload.expect(headers())
    assert not upload.arrived(LIMIT)
    assert budget.taken == 1


@pytest.mark.parametrize("is_there", [False, True])
def test_all_is_given_back_once(budget: BodyBudget, is_there: bool) -> None:
    """However often it is released, on its way or after."""
    upload = Upload(budget)
    assert upload.expect(headers())
    if is_there:
        assert upload.arrived(100)
    for _ in range(3):
        upload.release()
        assert budget.taken == 1
