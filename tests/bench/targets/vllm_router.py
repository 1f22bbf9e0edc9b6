"""vllm-router from PyPI, in the mode that does what we do: MoRI-IO engines register themselves.

Its policy is the one that costs it least, and it does not log each request.
"""

import sys
from pathlib import Path

from tests.bench.cpu_account import descendants
from tests.bench.program import Program
from tests.bench.targets.target import Target
from tests.ports import free_port


class VllmRouter(Target):
    name = "vllm-router"

    def __init__(self, folder: Path) -> None:
        port, registration, metrics = free_port(), free_port(), free_port()
        self.address = f"127.0.0.1:{port}"
        self.registration = f"127.0.0.1:{registration}"
        command = [sys.executable, "-m", "vllm_router.launch_router"]
        command += ["--host", "127.0.0.1", "--port", str(port)]
        command += ["--vllm-pd-disaggregation", "--kv-connector", "moriio"]
        command += ["--vllm-discovery-address", self.registration]
        command += ["--policy", "round_robin", "--log-level", "warning"]
        command += ["--prometheus-port", str(metrics)]
        self._program = Program("vllm-router", command, folder)

    def processes(self) -> dict[int, str]:
        return dict.fromkeys(descendants(self._program.pid), "vllm-router")

    def last_words(self) -> str:
        return self._program.last_words()

    def close(self) -> None:
        self._program.close()
