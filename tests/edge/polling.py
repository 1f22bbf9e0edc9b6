"""How a test waits for what has no event of its own: it polls, and fails at a deadline."""

import asyncio
from collections.abc import Callable
from time import monotonic


async def until(condition: Callable[[], object], what: str = "", timeout_s: float = 10.0) -> None:
    """Until `condition()` is true. `what` is said when it is not in time."""
    deadline = monotonic() + timeout_s
    while not condition():
        assert monotonic() < deadline, f"not within {timeout_s:g} s: {what or condition}"
        await asyncio.sleep(0.005)
