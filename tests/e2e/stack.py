"""The whole thing on this machine, for a test: real Envoy, the sidecar, simulated engines.

Every port is free, every process is ended by `close`. Waits poll a condition with a deadline.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from tests.ports import free_port


def until(condition: Callable[[], Any], what: str, timeout_s: float = 15.0) -> Any:
    """Poll until `condition` is true and return what it returned; AssertionError with `what`."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s} s: {what}")
        time.sleep(0.02)


def http(method: str, url: str, body: Any = None, timeout_s: float = 10.0) -> tuple[int, bytes]:
    """One request; status 0 when nobody answers."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, method=method)
    if data is not None:
        request.add_header("content-type", "application/json")
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except OSError:
        return 0, b""


class Engine:
    """One simulated engine, its own process (`pd-sidecar sim`); `registration` empty: nowhere."""

    def __init__(self, role: str, registration: str, **options: Any) -> None:
        self.role = role
        flags = [f"--{key.replace('_', '-')}={value}" for key, value in options.items()]
        command = [sys.executable, "-m", "sidecar", "sim", f"--role={role}"]
        if registration:
            command.append(f"--proxy={registration}")
        self.process = subprocess.Popen(
            [*command, *flags], stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"the engine ended: {self.process.wait()}")
        self.ready = json.loads(line)
        self.address: str = self.ready["http"]
        self.url = f"http://{self.address}"

    def state(self) -> dict[str, Any]:
        status, body = http("GET", f"{self.url}/sim/state")
        assert status == 200, status
        return json.loads(body)

    def ask(self, control: str, **body: Any) -> None:
        """POST /sim/<control>."""
        status, answer = http("POST", f"{self.url}/sim/{control}", body)
        assert status == 200, answer

    def last(self, leg: str) -> list[dict[str, Any]]:
        """The last requests of a leg as they arrived, oldest first."""
        status, body = http("GET", f"{self.url}/sim/last?leg={leg}")
        assert status == 200, status
        return json.loads(body)

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


class Stack:
    """`pd-sidecar up` with its own run directory and ports, and the engines a test starts."""

    def __init__(self, config: dict[str, Any] | None = None, workers: int = 1) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="pd-", dir="/tmp"))
        names = ("edge", "registration", "observe", "admin", "envoy_admin")
        ports = {name: free_port() for name in names}
        self.registration = f"127.0.0.1:{ports['registration']}"
        self.url = f"http://127.0.0.1:{ports['edge']}"
        self.admin = f"http://127.0.0.1:{ports['admin']}"
        self.observe = f"http://127.0.0.1:{ports['observe']}"
        self.envoy_admin = f"http://127.0.0.1:{ports['envoy_admin']}"
        settings: dict[str, Any] = {
            "edge": {
                "listen": f"127.0.0.1:{ports['edge']}",
                "access_log_path": str(self.folder / "access.log"),
            },
            "registration": {"listen": f"tcp://{self.registration}"},
            "observe": {"listen": f"127.0.0.1:{ports['observe']}"},
            "admin": {"listen": f"127.0.0.1:{ports['admin']}"},
            "envoy": {"admin_listen": f"127.0.0.1:{ports['envoy_admin']}", "concurrency": 2},
            "run_dir": str(self.folder / "run"),
            "workers": workers,
            "drain": {"timeout_s": 20},
            # The harder way for a router. In series WRITE goes as READ does, but for the bodies.
            "placement": {"write_legs": "at_once"},
        }
        for section, values in (config or {}).items():
            if isinstance(values, dict):
                settings.setdefault(section, {}).update(values)
            else:
                settings[section] = values
        self.config_path = self.folder / "config.yaml"
        self.config_path.write_text(yaml.safe_dump(settings))
        self.engines: list[Engine] = []
        self.unserved = 0
        """what `start` was refused; counted, and Envoy may report it later"""
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Stack":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- life

    def spawn(self) -> "subprocess.Popen[bytes]":
        """Start `up` and wait for nothing."""
        with (self.folder / "up.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "sidecar", "up", "--config", str(self.config_path)],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self.process

    def start(self, timeout_s: float = 30.0) -> None:
        """Start `up` and wait until Envoy and all workers are connected."""
        process = self.spawn()

        def is_up() -> bool:
            assert process.poll() is None, f"`up` ended: {self.log()}"
            status = self.status()
            workers = yaml.safe_load(self.config_path.read_text())["workers"]
            return bool(status and status["envoys"] and status["workers"] == workers)

        until(is_up, "Envoy and the workers are connected", timeout_s)

        def sees_a_worker() -> bool:
            status, body = http("GET", f"{self.url}/health")
            self.unserved += b"no_worker" in body
            return status != 0 and b"no_worker" not in body

        until(sees_a_worker, "Envoy sees a worker", timeout_s)

    def engine(self, role: str, **options: Any) -> Engine:
        engine = Engine(role, self.registration, **options)
        self.engines.append(engine)
        return engine

    def fleet(
        self, prefill: list[int], decode: list[int], mode: str = "READ", **options: Any
    ) -> tuple[list[Engine], list[Engine]]:
        """One engine for each dp size, all placeable when this returns."""
        beats = {"ping_interval_s": 1, **options}
        p = [self.engine("prefill", dp_size=n, mode=mode, **beats) for n in prefill]
        d = [self.engine("decode", dp_size=n, mode=mode, **beats) for n in decode]
        self.wait_placeable(*p, *d)
        return p, d

    def wait_placeable(self, *engines: Engine, timeout_s: float = 15.0) -> None:
        wanted = {engine.address for engine in engines}
        until(lambda: wanted <= self.placeable(), f"placeable: {wanted}", timeout_s)

    def stop(self, timeout_s: float = 40.0) -> int:
        """SIGTERM, as an operator would; returns the exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout_s)

    def kill_sidecar(self) -> None:
        """kill -9 of all processes of the sidecar: supervisor, control, workers. Envoy lives."""
        assert self.process is not None
        for pid in [self.process.pid, *self.child_pids()]:
            os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        for engine in self.engines:
            engine.close()
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.kill_sidecar()
        subprocess.run(
            [sys.executable, "-m", "sidecar", "down", "--config", str(self.config_path)],
            capture_output=True,
            timeout=20,
            check=False,
        )
        shutil.rmtree(self.folder, ignore_errors=True)

    # --- processes

    def child_pids(self, kind: str = "") -> list[int]:
        """Pids of the children (`control`, `worker`) whose command names this run directory."""
        found = []
        marker = f"--run-dir={self.folder / 'run'}"
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                command = (entry / "cmdline").read_bytes().decode().split("\0")
            except (OSError, UnicodeDecodeError):
                continue
            if marker in command and (not kind or kind in command):
                found.append(int(entry.name))
        return found

    @staticmethod
    def is_alive(pid: int) -> bool:
        """Whether the process runs; a zombie that its reaper has not met yet does not."""
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return False
        return stat.rpartition(")")[2].split()[0] not in "ZX"

    def envoy_pid(self) -> int:
        return int(json.loads((self.folder / "run" / "envoy.json").read_text())["pid"])

    # --- readings

    def log(self) -> str:
        return (self.folder / "up.log").read_text()

    def access_log(self) -> list[dict[str, Any]]:
        path = self.folder / "access.log"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def status(self) -> dict[str, Any] | None:
        status, body = http("GET", f"{self.admin}/status", timeout_s=3)
        return json.loads(body) if status == 200 else None

    def instances(self) -> dict[str, dict[str, Any]]:
        status, body = http("GET", f"{self.admin}/instances")
        assert status == 200
        return {one["address"]: one for one in json.loads(body)}

    def placeable(self) -> set[str]:
        return {address for address, one in self.instances().items() if one["is_placeable"]}

    def in_flight(self) -> dict[str, int]:
        """By role."""
        total = {"prefill": 0, "decode": 0}
        for one in self.instances().values():
            total[one["role"]] += one["in_flight"]
        return total

    def exchanges(self) -> list[dict[str, Any]]:
        status, body = http("GET", f"{self.admin}/exchanges")
        assert status == 200
        return json.loads(body)

    def metric(self, name: str, **labels: str) -> float:
        """Sum over the series of that name that have these labels; 0 for none."""
        _, body = http("GET", f"{self.observe}/metrics")
        total = 0.0
        for line in body.decode().splitlines():
            series, _, value = line.rpartition(" ")
            if series.partition("{")[0] == name and all(
                f'{key}="{wanted}"' in series for key, wanted in labels.items()
            ):
                total += float(value)
        return total

    def envoy_stat(self, name: str) -> int:
        status, body = http("GET", f"{self.envoy_admin}/stats?filter=^{name}$")
        assert status == 200
        text = body.decode().strip()
        return int(text.rpartition(" ")[2]) if text else 0
