"""Log lines that come too often: said once, then summed up."""

from sidecar.telemetry.repeated import EVERY_S, KEYS_MAX, Repeated


def test_a_line_is_said_once_and_the_next_one_has_the_count() -> None:
    lines = Repeated()
    assert [lines.unsaid("a", 0.0), lines.unsaid("a", 1.0), lines.unsaid("a", 2.0)] == [
        0,
        None,
        None,
    ]
    assert lines.unsaid("a", EVERY_S) == 2
    assert lines.unsaid("a", 2 * EVERY_S) == 0


def test_one_kind_silences_no_other() -> None:
    lines = Repeated()
    assert lines.unsaid("a", 0.0) == 0
    assert lines.unsaid("b", 0.0) == 0


def test_many_kinds_are_forgotten_together() -> None:
    """Whoever makes up kinds without end costs a line each, not memory."""
    lines = Repeated()
    assert all(lines.unsaid(f"{i}", 0.0) == 0 for i in range(KEYS_MAX))
    assert lines.unsaid("0", 1.0) is None
    assert lines.unsaid("one more", 1.0) == 0
    assert lines.unsaid("0", 1.0) == 0
