"""What the page says of differences is what the tables say."""

from tests.engines.document import PATH, written


def test_the_page_has_the_tables() -> None:
    """`python -m tests.engines.document` writes them."""
    page = PATH.read_text()
    assert page == written(page)
