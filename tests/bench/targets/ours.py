"""This project as an operator starts it: `pd-sidecar up`, its ports the only settings, but for a
number of workers where that is what is compared."""

import json
import subprocess
import sys
from pathlib import Path

import yaml

from tests.bench.cpu_account import command_of, descendants
from tests.bench.program import Program
from tests.bench.targets.target import Target
from tests.bench.worker_names import name_of
from tests.ports import free_port


class Ours(Target):
    name = "ours"

    def __init__(self, folder: Path, workers: int = 0) -> None:
        """`workers` 0: the default."""
        if workers:
            self.name = name_of(workers)
            folder = folder / self.name
            folder.mkdir()
        ports = [free_port() for _ in range(5)]
        self.address, self.registration, observe, admin, envoy_admin = (
            f"127.0.0.1:{port}" for port in ports
        )
        self._run_dir = folder / "run"
        self._config = folder / "ours.yaml"
        settings = {
            "edge": {"listen": self.address},
            "registration": {"listen": f"tcp://{self.registration}"},
            "observe": {"listen": observe},
            "admin": {"listen": admin},
            "envoy": {"admin_listen": envoy_admin},
            "run_dir": str(self._run_dir),
            "workers": workers,
        }
        self._config.write_text(yaml.safe_dump(settings))
        self._program = Program("ours", self._command("up"), folder)

    def _command(self, verb: str) -> list[str]:
        return [sys.executable, "-m", "sidecar", verb, "--config", str(self._config)]

    def processes(self) -> dict[int, str]:
        """Envoy was started so that it outlives us: it is no child."""
        record = json.loads((self._run_dir / "envoy.json").read_text())
        found = {pid: kind_of(command_of(pid)) for pid in descendants(self._program.pid)}
        return found | {int(record["pid"]): "Envoy"}

    def last_words(self) -> str:
        return self._program.last_words()

    def close(self) -> None:
        self._program.close()
        # What a sidecar that had to be killed leaves behind.
        subprocess.run(self._command("down"), capture_output=True, timeout=30, check=False)


def kind_of(command: list[str]) -> str:
    """Which of the sidecar's processes runs with this command."""
    return next((kind for kind in ("control", "worker") if kind in command), "supervisor")
