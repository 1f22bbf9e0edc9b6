"""The stand-in for vLLM's example proxy (`example_proxy`), as its own process."""

import sys
from pathlib import Path

from tests.bench.cpu_account import descendants
from tests.bench.program import Program
from tests.bench.targets.target import Target
from tests.ports import free_port


class Example(Target):
    name = "example"

    def __init__(self, folder: Path) -> None:
        port, registration = free_port(), free_port()
        self.address = f"127.0.0.1:{port}"
        self.registration = f"127.0.0.1:{registration}"
        command = [sys.executable, "-m", "tests.bench.targets.example_proxy"]
        command += [f"--port={port}", f"--registration=tcp://{self.registration}"]
        self._program = Program("example", command, folder)

    def processes(self) -> dict[int, str]:
        return dict.fromkeys(descendants(self._program.pid), "example")

    def last_words(self) -> str:
        return self._program.last_words()

    def close(self) -> None:
        self._program.close()
