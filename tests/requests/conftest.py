"""One router with two engines that do what the test says, for the tests of transport and input; and
one with simulated engines of two models."""

from collections.abc import Iterator

import pytest

from tests.requests.transport_stack import Wired
from tests.requests.two_models import TwoModels


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


@pytest.fixture(scope="module")
def two() -> Iterator[TwoModels]:
    """Nothing stays taken after all tests of a module."""
    made = TwoModels()
    try:
        yield made
        made.check_rest()
    finally:
        made.stack.close()
