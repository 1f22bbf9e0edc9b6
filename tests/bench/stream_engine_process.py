"""The streaming mock engine (`stream_engine`) in its own process, as the rest of a run sees it."""

import sys
import urllib.request
from pathlib import Path

from tests.bench.nginx_engines import Registration
from tests.bench.program import Program
from tests.e2e.stack import until
from tests.ports import free_port


class StreamEngine:
    """One decode instance."""

    def __init__(self, folder: Path) -> None:
        port = free_port()
        self.registrations = [Registration("D", f"127.0.0.1:{port}", free_port(), free_port())]
        command = [sys.executable, "-m", "tests.bench.stream_engine", f"--port={port}"]
        self._program = Program("stream-engine", command, folder)
        until(self._is_up, "the streaming engine answers", 30)

    @property
    def addresses(self) -> list[str]:
        return [one.http_address for one in self.registrations]

    def count(self) -> int:
        """Requests so far, the probes of routers among them."""
        return int(self._get("/bench/count"))

    def set_pace(self, pace_ms: int, chunks: int) -> None:
        """Of every stream that begins after it: `chunks` tokens, one each `pace_ms`."""
        self._get(f"/bench?pace_ms={pace_ms}&chunks={chunks}")

    def _get(self, target: str) -> bytes:
        with urllib.request.urlopen(f"http://{self.addresses[0]}{target}", timeout=30) as answer:
            return answer.read()

    def _is_up(self) -> bool:
        assert self._program.is_alive, f"the engine ended: {self._program.last_words()}"
        try:
            return self.count() >= 0
        except OSError:
            return False

    def close(self) -> None:
        self._program.close()
