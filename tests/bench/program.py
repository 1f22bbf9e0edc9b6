"""A program that the benchmark starts and ends; its output goes to a file."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

END_S = 20.0
"""for a program to end by itself after SIGTERM; then it is killed"""
LOG_LINES = 15


class Program:
    """One process and its children, in a group of their own."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        folder: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self._log = folder / f"{name}.log"
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def last_words(self) -> str:
        """The last lines of its output, for a message."""
        lines = self._log.read_text(errors="replace").splitlines()
        return "\n".join(lines[-LOG_LINES:])

    def close(self) -> None:
        if self.is_alive:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(END_S)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
