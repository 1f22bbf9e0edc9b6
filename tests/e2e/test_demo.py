"""`pd-sidecar demo`: shows its answers and leaves nothing behind."""

import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.stack import until
from tests.ports import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.timed]

ANSWERS = 4
RECEIPT = re.compile(r"x-pd-prefill: p\d+#0   x-pd-decode: d\d+#0")
TIMES = re.compile(r"first token after \d+ ms, 24 tokens in \d+ ms")


class DemoRun:
    """One `pd-sidecar demo` on ports of its own."""

    def __init__(self) -> None:
        self.run_dir = Path(tempfile.mkdtemp(prefix="pd-", dir="/tmp"))
        names = ("listen", "registration", "observe", "admin", "envoy-admin")
        self.ports = {name: free_port() for name in names}
        self.process: subprocess.Popen[str] | None = None

    def start(self, *flags: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "sidecar", "demo", f"--run-dir={self.run_dir}", *flags]
        for name, port in self.ports.items():
            scheme = "tcp://" if name == "registration" else ""
            command.append(f"--{name}={scheme}127.0.0.1:{port}")
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        return self.process

    def end(self, timeout_s: float = 60.0) -> tuple[int, str, str]:
        """Exit code, stdout and stderr."""
        assert self.process is not None
        out, err = self.process.communicate(timeout=timeout_s)
        return self.process.returncode, out, err

    def processes(self) -> list[str]:
        """Command lines of living processes that name the run directory or the engines' port."""
        engine = f"--proxy=127.0.0.1:{self.ports['registration']}"
        found = []
        for entry in Path("/proc").iterdir():
            try:
                command = (entry / "cmdline").read_text() if entry.name.isdigit() else ""
            except (OSError, UnicodeDecodeError):
                continue
            if str(self.run_dir) in command or engine in command:
                found.append(command.replace("\0", " "))
        return found

    def open_ports(self) -> list[str]:
        """Ports of ours that somebody still listens on."""
        found = []
        for name, port in self.ports.items():
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    found.append(name)
        return found

    def assert_nothing_is_left(self) -> None:
        assert self.processes() == []
        assert self.open_ports() == []
        assert list(self.run_dir.glob("*.sock")) == []
        assert not (self.run_dir / "lock").exists()

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
        shutil.rmtree(self.run_dir, ignore_errors=True)


@pytest.fixture
def demo() -> Iterator[DemoRun]:
    one = DemoRun()
    yield one
    one.close()


@pytest.mark.parametrize("mode", ["READ", "WRITE"])
def test_it_shows_answers_receipts_and_slots_and_ends(demo: DemoRun, mode: str) -> None:
    """Exit code 0, a receipt and the times for each answer, the slots with nothing in flight."""
    demo.start("--mode", mode.lower(), "--workers=2")
    code, out, err = demo.end()
    log = demo.run_dir / "demo.log"
    assert code == 0, out + err + log.read_text()
    assert len(RECEIPT.findall(out)) == len(TIMES.findall(out)) == ANSWERS
    assert "in flight 0" in out
    assert f"ended requests: ok {ANSWERS}\n" in out
    rows = re.findall(rf"\b([pd])\d\b.* ready .*\b{mode}\b", out)
    assert sorted(rows) == ["d", "d", "p", "p"], out
    assert err == ""  # the log goes to a file
    assert "joined" in log.read_text()
    demo.assert_nothing_is_left()


def test_ctrl_c_ends_it_at_once(demo: DemoRun) -> None:
    """In the middle of an answer: exit code 130, and nothing is left."""
    process = demo.start()
    assert process.stdout is not None
    seen = ""
    while "x-pd-prefill: " not in seen:
        line = process.stdout.readline()
        assert line, seen
        seen += line
    process.send_signal(signal.SIGINT)
    code, out, err = demo.end(timeout_s=15)
    assert (code, err) == (130, ""), out
    assert "stopped before the end" in out
    demo.assert_nothing_is_left()


def test_a_port_in_use_is_one_clear_line(demo: DemoRun) -> None:
    """Exit code 1, and the line names the key, the address and the log."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", demo.ports["listen"]))
        taken.listen()
        demo.start()
        code, _, err = demo.end()
    assert code == 1
    assert len(err.splitlines()) == 1
    assert f"edge.listen: cannot listen on 127.0.0.1:{demo.ports['listen']}" in err
    assert "demo.log" in err
    until(lambda: not demo.processes(), "no process is left")
