"""The kernel's count of what a listener's full queue turned away."""

import contextlib
import socket

from tests.bench.listener_drops import listener_drops
from tests.e2e.stack import until


def listener(backlog: int) -> socket.socket:
    """It accepts nobody."""
    made = socket.socket()
    made.bind(("127.0.0.1", 0))
    made.listen(backlog)
    return made


def test_a_full_queue_counts_for_its_own_port() -> None:
    """Ten connections to a queue of one are turned away and counted; the other port has none."""
    with contextlib.ExitStack() as stack:
        full, other = (stack.enter_context(listener(backlog)) for backlog in (1, 100))
        for target in (full, other):
            for _ in range(10):
                client = stack.enter_context(socket.socket())
                client.setblocking(False)
                client.connect_ex(target.getsockname())
        until(lambda: listener_drops(full.getsockname()[1]) >= 8, "drops are counted", 5)
        assert listener_drops(other.getsockname()[1]) == 0


def test_a_port_without_a_listener_has_no_drops() -> None:
    """Nothing to count."""
    assert listener_drops(1) == 0
