"""What real engines were seen to answer: the shapes of all rows, and of a prefill leg on each API.

The file is written by a run of the real engines with ENGINES_RECORD=1, and held against them by
every other; the simulator is held against the file.
"""

import json
import os
from pathlib import Path
from typing import Any

PATH = Path(__file__).parent / "seen.json"
IS_RECORDING = os.environ.get("ENGINES_RECORD") == "1"


def rows() -> dict[str, Any]:
    """By the row's name."""
    told = _read()
    return {name: told["shapes"][number] for name, number in told["rows"].items()}


def legs(wiring: str) -> dict[str, Any]:
    """By the path of the API."""
    found: dict[str, Any] = _read()["legs"][wiring]
    return found


def write_rows(found: dict[str, Any]) -> None:
    """Each shape once: many rows have the same."""
    shapes: list[Any] = []
    for shape in found.values():
        if shape not in shapes:
            shapes.append(shape)
    numbers = {name: shapes.index(shape) for name, shape in found.items()}
    _write(_read() | {"rows": numbers, "shapes": shapes})


def write_legs(wiring: str, found: dict[str, Any]) -> None:
    told = _read()
    _write(told | {"legs": told.get("legs", {}) | {wiring: found}})


def _read() -> dict[str, Any]:
    told: dict[str, Any] = json.loads(PATH.read_text()) if PATH.exists() else {}
    return told


def _write(told: dict[str, Any]) -> None:
    """A line for each row, shape and leg, so that a change can be read."""
    parts = [f'"{name}": {_lines(part)}' for name, part in sorted(told.items())]
    PATH.write_text("{\n" + ",\n".join(parts) + "\n}\n")


def _lines(part: Any) -> str:
    if isinstance(part, list):
        return "[\n" + ",\n".join(json.dumps(one) for one in part) + "\n]"
    one_each = (f"{json.dumps(key)}: {json.dumps(value)}" for key, value in part.items())
    return "{\n" + ",\n".join(one_each) + "\n}"
