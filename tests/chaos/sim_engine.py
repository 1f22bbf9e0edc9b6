"""One simulated engine of a chaos run: its ports are its own, so that a successor has the same."""

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

from sidecar.sim.fleet import engine_command
from sidecar.sim.options import Mode, Role, SimOptions
from tests.e2e.stack import Stack, http
from tests.ports import free_port, free_ports

DP_SIZE = 4
PING_INTERVAL_S = 0.5
DEFER_TIMEOUT_S = 5.0
TTFT_MS = 20.0
TOKENS_PER_S = 60.0
ANSWER_TIMEOUT_S = 1.0


class SimEngine:
    """An engine and its lives. Each ends with the harness too: its lifeline is a pipe of ours."""

    def __init__(self, number: int, role: Role, mode: Mode, stack: Stack) -> None:
        self.name = f"{role} {number}"
        self.role = role
        self.address = f"127.0.0.1:{free_port()}"
        self.url = f"http://{self.address}"
        self.life = 0
        self._options = SimOptions(
            role=role,
            mode=mode,
            http=self.address,
            proxy=stack.registration,
            dp_size=DP_SIZE,
            handshake_port=free_ports(DP_SIZE),
            notify_port=free_ports(DP_SIZE),
            ping_interval_s=PING_INTERVAL_S,
            defer_timeout_s=DEFER_TIMEOUT_S,
            ttft_ms=TTFT_MS,
            tokens_per_s=TOKENS_PER_S,
        )
        self.log: Path = stack.folder / f"engine-{number}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline, self._end = os.pipe()
        self.is_stopped = False
        self.is_wanted = False
        """False from our signal to end it until its next start"""

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start a life, and wait for nothing."""
        assert not self.is_alive, self.name
        self.life += 1
        self.is_wanted = True
        command = engine_command(self._options, self._lifeline)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(self._lifeline,),
                start_new_session=True,
            )

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        self.is_stopped = number == signal.SIGSTOP
        self.is_wanted &= number not in (signal.SIGKILL, signal.SIGTERM)

    def reap(self, timeout_s: float) -> bool:
        """Wait for its end; whether it came."""
        assert self._process is not None
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def state(self) -> dict[str, Any] | None:
        """What it counts; None when it does not answer."""
        status, body = http("GET", f"{self.url}/sim/state", timeout_s=ANSWER_TIMEOUT_S)
        return json.loads(body) if status == 200 else None

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        os.close(self._lifeline)
        os.close(self._end)
