"""Options of the whole suite."""

import pytest
from hypothesis import settings

# What fails fails by the change, not by the draw. `make fuzz` draws, and so does
# `pytest --hypothesis-profile=default`.
settings.register_profile("same-each-time", derandomize=True)
settings.load_profile("same-each-time")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--regenerate",
        action="store_true",
        help="write what the program does now into the scenario files; read the diff",
    )
