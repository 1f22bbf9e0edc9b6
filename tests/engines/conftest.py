"""A fleet of each kind, started once for all tests that ask for it; what was compared on each."""

from collections.abc import Iterator

import pytest

from tests.engines.environment import Unavailable
from tests.engines.fleet import Fleet
from tests.engines.tally import TALLY


@pytest.fixture(scope="session")
def fleet(request: pytest.FixtureRequest) -> Iterator[Fleet]:
    try:
        fleet = Fleet(request.param)
    except Unavailable as reason:
        pytest.skip(str(reason))
    yield fleet
    fleet.close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if TALLY:
        terminalreporter.section("requests compared with the engine's own answers")
        for line in TALLY.lines():
            terminalreporter.line(line)
