"""Which fleets a test runs on."""

import pytest

from tests.engines.fleet import Kind

WIRINGS = (("moriio", "READ"), ("moriio", "WRITE"), ("nixl", "READ"))
SIMULATED = [Kind(False, *wiring) for wiring in WIRINGS]
REAL = [Kind(True, *wiring) for wiring in WIRINGS]
ALL = SIMULATED + REAL


def on(kinds: list[Kind]) -> pytest.MarkDecorator:
    """The real ones only where `-m vllm` asks for them: they take 2 GB and a minute each."""
    cases = [
        pytest.param(kind, id=kind.name, marks=[pytest.mark.vllm] if kind.is_real else [])
        for kind in kinds
    ]
    return pytest.mark.parametrize("keeper", cases, indirect=True, scope="session")
