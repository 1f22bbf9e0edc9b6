"""One router with two engines that do what the test says, for the tests of transport and input."""

from collections.abc import Iterator

import pytest

from tests.requests.transport_stack import Wired


@pytest.fixture(scope="session")
def session_wired() -> Iterator[Wired]:
    made = Wired()
    yield made
    made.close()


@pytest.fixture
def wired(session_wired: Wired) -> Iterator[Wired]:
    """As new: no script, nothing received."""
    session_wired.reset()
    yield session_wired
    session_wired.reset()
