"""Every scenario file still has its effects; `--regenerate` writes those that it has now."""

from pathlib import Path

import pytest
from scenario import RULE, read, replay

FOLDER = Path(__file__).parent / "scenarios"
FILES = sorted(FOLDER.glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_scenario_has_the_effects_it_says(path: Path, request: pytest.FixtureRequest) -> None:
    """Events in, effects out, and the phase after each."""
    text = path.read_text()
    now = replay(text)
    if request.config.getoption("--regenerate"):
        path.write_text(now)
    assert request.config.getoption("--regenerate") or now == text


def test_the_scenarios_are_there() -> None:
    """A suite without files would say nothing."""
    assert len(FILES) >= 10
    assert all(RULE in path.read_text() for path in FILES)


def test_a_scenario_that_says_something_else_is_seen() -> None:
    """The comparison is of every line."""
    text = (FOLDER / "read.txt").read_text()
    assert replay(text.replace("note replied", "note nothing")) == replay(text)
    assert replay(text) != text.replace("note replied", "note nothing")


def test_a_line_that_is_no_event_is_an_error() -> None:
    """Never a silent pass."""
    with pytest.raises(ValueError, match="not an event: prefil kv"):
        read("prefil kv")
