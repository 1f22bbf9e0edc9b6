"""The page is what the rows say, and every test that it names is there."""

import re
from pathlib import Path

import pytest

from tests.requests.document import PATH, SECTIONS, document
from tests.requests.proof import Proof

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_is_made_of_the_rows() -> None:
    """`python -m tests.requests.document` writes it."""
    assert PATH.read_text() == document()


def test_no_feature_is_told_twice() -> None:
    """In one section."""
    for title, rows in SECTIONS:
        told = [row.feature for row in rows]
        assert len(set(told)) == len(told), title


@pytest.mark.parametrize(
    "row", [row for _, rows in SECTIONS for row in rows], ids=lambda row: row.feature
)
def test_a_test_that_is_named_is_there(row: Proof) -> None:
    """So that no row is proven by nothing."""
    path, _, name = row.test.partition("::")
    assert re.search(rf"^(async )?def {name}\(", (ROOT / path).read_text(), re.M), row.test
