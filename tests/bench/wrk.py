"""wrk: a closed loop of clients, each with a connection, that send one request again and again."""

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.bench.mock_answers import PATH

MARK = "BENCH "
SCRIPT = """\
local file = assert(io.open(os.getenv("BENCH_BODY"), "rb"))
wrk.method = "POST"
wrk.path = os.getenv("BENCH_PATH")
wrk.headers["content-type"] = "application/json"
wrk.body = file:read("*a")
file:close()

function done(summary, latency)
  local e = summary.errors
  io.write(string.format(
    '%s{"answers": %d, "duration_us": %d, "p50_us": %d, "p99_us": %d, "connect": %d, ' ..
    '"read": %d, "write": %d, "status": %d, "timeout": %d}\\n', "BENCH ",
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    e.connect, e.read, e.write, e.status, e.timeout))
end
"""
GRACE_S = 30.0
TIMEOUT_S = 20
"""after which wrk counts a request as failed"""


class WrkError(Exception):
    """wrk did not run as it should; the message has its output."""


@dataclass(frozen=True, slots=True)
class Load:
    """What wrk saw. `p50_s` and `p99_s` are until the whole answer is there; as these answers are
    one packet that is the first byte too."""

    answers: int
    seconds: float
    p50_s: float
    p99_s: float
    failures: int
    """answers that were not 2xx, and connections that broke or gave none in time"""

    @property
    def per_second(self) -> float:
        return self.answers / self.seconds


class Wrk:
    """Loads one address with one body; keeps the body and the script in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._binary = shutil.which("wrk") or "wrk"
        self._script = folder / "load.lua"
        self._script.write_text(SCRIPT)

    def run(self, address: str, body: bytes, clients: int, seconds: float) -> Load:
        """Load for that long. wrk takes whole seconds, so a shorter run is ended by a signal."""
        body_path = self._folder / f"body-{len(body)}"
        if not body_path.exists():
            body_path.write_bytes(body)
        command = [self._binary, "-t1", f"-c{clients}", f"-d{max(1, round(seconds + 0.5))}s"]
        command += [f"--timeout={TIMEOUT_S}s", f"-s{self._script}", f"http://{address}{PATH}"]
        environment = {**os.environ, "BENCH_BODY": str(body_path), "BENCH_PATH": PATH}
        process = subprocess.Popen(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # wrk ends itself on SIGINT; a terminal's must not reach it.
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(2)
            output, _ = process.communicate(timeout=GRACE_S)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        return read_output(output)


def read_output(output: str) -> Load:
    """The line that our script prints. Raises WrkError with what was there instead."""
    lines = [line for line in output.splitlines() if line.startswith(MARK)]
    if not lines:
        raise WrkError(f"wrk said nothing of its load: {output[-600:]}")
    said = json.loads(lines[0].removeprefix(MARK))
    return Load(
        answers=said["answers"] - said["status"],
        seconds=said["duration_us"] / 1e6,
        p50_s=said["p50_us"] / 1e6,
        p99_s=said["p99_us"] / 1e6,
        failures=said["connect"] + said["read"] + said["write"] + said["status"] + said["timeout"],
    )
