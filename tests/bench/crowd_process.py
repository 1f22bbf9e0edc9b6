"""A crowd of clients (`crowd`) in its own process, as a part of the benchmark uses it."""

import json
import subprocess
import sys
from dataclasses import dataclass
from typing import Any


class CrowdError(Exception):
    """The crowd's process ended before its time."""


@dataclass(frozen=True, slots=True)
class CrowdResult:
    """What the clients saw. `first_s` and `gap_s` are p50 and p99, None without a value."""

    failures: int
    faults: dict[str, int]
    seconds: float
    first_s: tuple[float, float] | None
    gap_s: tuple[float, float] | None


class CrowdProcess:
    """One crowd; a context that ends it."""

    def __init__(
        self,
        address: str,
        clients: int,
        chunks: int,
        at_once: int = 0,
        connects_late: bool = False,
        limit_s: float = 60.0,
    ) -> None:
        command = [sys.executable, "-m", "tests.bench.crowd", f"--address={address}"]
        command += [f"--clients={clients}", f"--chunks={chunks}", f"--at-once={at_once}"]
        command += ["--connects-late"] if connects_late else []
        command += [f"--limit-s={limit_s}"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            self.connected: int = self._hear()["connected"]
        except CrowdError:
            self.close()
            raise

    def __enter__(self) -> "CrowdProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def go(self) -> None:
        """All send; until each has its first byte or has failed."""
        self._ask("go")

    def count(self) -> int:
        """Chunks that came so far."""
        return self._ask("count")["chunks"]

    def finish(self) -> CrowdResult:
        """Until all answers are whole."""
        said = self._ask("finish")
        first, gap = (tuple(said[key]) if said[key] else None for key in ("first_s", "gap_s"))
        faults = said["faults"]
        return CrowdResult(sum(faults.values()), faults, said["seconds"], first, gap)

    def _ask(self, order: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(order + "\n")
        self._process.stdin.flush()
        return self._hear()

    def _hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise CrowdError(f"the crowd ended: {self._process.wait()}")
        return json.loads(line)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
