"""One Envoy for all tests of a module, as new for each."""

from collections.abc import Iterator
from typing import Any

import pytest
from envoy_edge import Edge


@pytest.fixture(scope="module")
def edge_settings() -> dict[str, Any]:
    """What is not as by default; a module with settings of its own has this fixture too."""
    return {}


@pytest.fixture(scope="module")
def shared_edge(edge_settings: dict[str, Any]) -> Iterator[Edge]:
    edge = Edge(**edge_settings)
    try:
        edge.start()
        yield edge
    finally:
        edge.stop()


@pytest.fixture
def edge(shared_edge: Edge) -> Edge:
    """Nothing is remembered of the tests before."""
    shared_edge.engine.requests.clear()
    shared_edge.engine.methods.clear()
    shared_edge.entries.clear()
    shared_edge.seen.clear()
    return shared_edge
