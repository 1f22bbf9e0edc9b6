"""Fixtures of the end-to-end tests."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.e2e.stack import Stack


@pytest.fixture
def stack_of() -> Iterator[Callable[..., Stack]]:
    """Makes stacks, started, and ends them all with the test; prints their logs when it fails."""
    stacks: list[Stack] = []

    def make(config: dict[str, Any] | None = None, workers: int = 1) -> Stack:
        stack = Stack(config, workers)
        stacks.append(stack)
        stack.start()
        return stack

    yield make
    for stack in stacks:
        print(stack.log())  # pytest shows it with a failure only
        stack.close()
