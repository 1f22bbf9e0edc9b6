"""What tests start must not meet."""

import subprocess
import sys

from tests import ports


def test_no_port_is_promised_twice() -> None:
    """In one process: 500, each once (drawn from 12000 without a note, some would repeat)."""
    claimed = [ports.free_port() for _ in range(500)]
    assert len(set(claimed)) == len(claimed)


def test_ports_in_a_row_are_promised_too() -> None:
    """None of them is handed out again, alone or in another row."""
    rows = [ports.free_ports(4) for _ in range(50)]
    claimed = [first + i for first in rows for i in range(4)]
    assert len(set(claimed)) == len(claimed)
    assert not any(ports._claim(port) for port in claimed)


def test_a_port_of_another_process_is_not_promised() -> None:
    """Nor over processes, and it is free again when its process has ended."""
    code = "from tests import ports; print(ports.free_port(), flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        port = int(other.stdout.readline())
        assert not ports._claim(port)
        other.communicate("\n", timeout=10)
    assert ports._claim(port)
