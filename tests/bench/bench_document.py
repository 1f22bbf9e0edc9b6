"""Writes a run's tables between the two markers of a document."""

from pathlib import Path

BEGIN = "<!-- written by `make bench WRITE=1`: begin -->"
END = "<!-- end -->"


def replaced(document: str, text: str) -> str:
    """The document with `text` between its markers. Raises ValueError when they are not there."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"no {BEGIN} followed by {END}")
    return f"{before}{BEGIN}\n\n{text.strip()}\n\n{END}{after}"


def write_into(path: Path, text: str) -> None:
    path.write_text(replaced(path.read_text(), text))
