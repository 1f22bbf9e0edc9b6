"""The page is what the rows say, and every test that it names is there."""

import re
from pathlib import Path

import pytest

from tests.failures.document import PATH, document
from tests.failures.elsewhere import ELSEWHERE, Elsewhere

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_is_made_of_the_rows() -> None:
    """`python -m tests.failures.document` writes it."""
    assert PATH.read_text() == document()


@pytest.mark.parametrize("row", ELSEWHERE, ids=lambda row: row.event)
def test_a_test_that_is_named_is_there(row: Elsewhere) -> None:
    """So that no row is shown by nothing."""
    assert bool(row.nixl) == bool(row.nixl_test)
    for test in filter(None, (row.test, row.nixl_test)):
        path, _, name = test.partition("::")
        assert re.search(rf"^def {name}\(", (ROOT / path).read_text(), re.M)
