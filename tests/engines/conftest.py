"""A fleet of each kind, kept for all tests that ask for it; what was compared on each."""

from collections.abc import Iterator

import pytest

from tests.engines.environment import Environment, Unavailable, prepare
from tests.engines.fleet import Fleet, Kind
from tests.engines.tally import TALLY


class Keeper:
    """Starts a fleet when it is asked for, and another one for one that a test has spoilt."""

    def __init__(self, kind: Kind, environment: Environment | None) -> None:
        self._kind = kind
        self._environment = environment
        self._fleet: Fleet | None = None

    def sound(self) -> Fleet:
        if self._fleet is not None and self._fleet.is_spoilt:
            self.close()
        return self.any()

    def any(self) -> Fleet:
        if self._fleet is None:
            self._fleet = Fleet(self._kind, self._environment)
        return self._fleet

    def close(self) -> None:
        fleet, self._fleet = self._fleet, None
        if fleet is not None:
            fleet.close()


@pytest.fixture(scope="session")
def vllm_environment() -> Environment:
    """Looked for once: whatever needs it is skipped with the same one line."""
    try:
        return prepare()
    except Unavailable as reason:
        TALLY.skipped = str(reason)
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def keeper(request: pytest.FixtureRequest) -> Iterator[Keeper]:
    kind = request.param
    keeper = Keeper(kind, request.getfixturevalue("vllm_environment") if kind.is_real else None)
    yield keeper
    keeper.close()


@pytest.fixture
def fleet(keeper: Keeper) -> Fleet:
    return keeper.sound()


@pytest.fixture
def spoilt_fleet(keeper: Keeper) -> Fleet:
    """For a test that spoils it, and does not mind that another one has."""
    fleet = keeper.any()
    fleet.spoil()
    return fleet


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if TALLY:
        terminalreporter.section("real and simulated engines")
        for line in TALLY.lines():
            terminalreporter.line(line)
