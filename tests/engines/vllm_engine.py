"""A real vLLM engine on this machine's CPUs: one deployment of `RANKS` data-parallel ranks."""

import contextlib
import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.stack import http, until
from tests.engines.environment import HERE, Environment
from tests.ports import free_port, free_ports

MODEL = "tiny"
RANKS = 2
CONTEXT_TOKENS = 1024
BLOCK_TOKENS = 32
HOLD_S = 25
"""So long prefill holds blocks that nobody fetches: MoRI-IO's `defer_timeout`, NIXL's lease. In
WRITE a decode engine that asks later waits for ever, as a busy machine may."""
START_S = 240.0
"""seen: 25 to 50 s for two at a time on two cores"""


@dataclass(frozen=True)
class Wiring:
    """How an engine moves KV."""

    connector: str
    """`moriio` or `nixl`"""
    mode: str
    """`READ` or `WRITE`"""
    registration: str = ""
    """`host:port` that MoRI-IO registers at; empty: nowhere"""


class VllmEngine:
    def __init__(
        self, environment: Environment, folder: Path, role: str, wiring: Wiring, **flags: Any
    ) -> None:
        self.role = role
        self.name = f"{role}-{free_port()}"
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.url = f"http://{self.address}"
        self.zmq_address = ""
        """as MoRI-IO registers it"""
        self._folder = folder / self.name
        self._folder.mkdir()
        self._environment = environment
        self._wiring = wiring
        self._side_channel = free_ports(RANKS)
        self._transfer = self._moriio() if wiring.connector == "moriio" else self._nixl()
        self._flags = flags
        self.process = self._spawn()

    def __repr__(self) -> str:
        return f"VllmEngine({self.name} at {self.address}, pid {self.process.pid})"

    # --- life

    def wait_healthy(self) -> None:
        """AssertionError with the end of its log when it ends, or does not answer in time."""

        def is_healthy() -> bool:
            assert self.process.poll() is None, f"{self} ended:\n{self.log()[-6000:]}"
            return http("GET", f"{self.url}/health", timeout_s=2)[0] == 200

        try:
            until(is_healthy, f"{self} is healthy", START_S)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log()[-6000:]}") from None

    def send(self, number: signal.Signals) -> None:
        """To all its processes."""
        os.killpg(self.process.pid, number)

    def close(self) -> None:
        """End the whole process group: the server, its engines and workers."""
        deadline = time.monotonic() + 10
        self._signal(signal.SIGCONT)
        self._signal(signal.SIGTERM)
        while self._has_processes() and time.monotonic() < deadline:
            self.process.poll()
            time.sleep(0.05)
        self._signal(signal.SIGKILL)
        self.process.wait(10)

    def log(self) -> str:
        return (self._folder / "engine.log").read_text(errors="replace")

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def _has_processes(self) -> bool:
        try:
            os.killpg(self.process.pid, 0)
        except ProcessLookupError:
            return False
        return True

    # --- how it is started

    def _spawn(self) -> "subprocess.Popen[bytes]":
        command: list[str] = [
            # It must not outlive a test run that is killed. (No `preexec_fn`: no code of ours may
            # run between fork and exec, as gRPC has threads here.)
            "setpriv", "--pdeathsig", "TERM",
            str(self._environment.vllm), "serve", str(self._environment.model),
            "--served-model-name", MODEL, "--host", "127.0.0.1", "--port", str(self.port),
            "--dtype", "bfloat16", "--enforce-eager", "--max-model-len", str(CONTEXT_TOKENS),
            "--max-num-seqs", "16", "--block-size", str(BLOCK_TOKENS),
            "--kv-cache-memory-bytes", str(64 << 20), "--api-server-count", "1",
            "--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--enable-scale-out",
            "--data-parallel-size", str(RANKS),
            # MoRI-IO has ranks only where the model has experts: of other models each rank is an
            # engine of its own, which would bind the same ports. The architecture has none, so
            # this word changes the deployment and nothing of the model.
            "--hf-overrides", json.dumps({"num_local_experts": 2}),
            "--kv-transfer-config", json.dumps(self._transfer),
            *(f"--{name.replace('_', '-')}={value}" for name, value in self._flags.items()),
        ]  # fmt: skip
        with (self._folder / "engine.log").open("wb") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._surroundings(),
                cwd=self._folder,
                start_new_session=True,
            )

    def _surroundings(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        caches = self._environment.folder / "caches"
        return kept | {
            "PATH": f"{self._environment.vllm.parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(HERE / "mori_stub"),
            "MORI_STUB_CONTROL": str(self.control_path),
            # Page-aligned tensors, without which MoRI-IO refuses to register them.
            "THP_MEM_ALLOC_ENABLE": "1",
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CACHE_ROOT": str(caches / "vllm"),
            "VLLM_CONFIG_ROOT": str(caches / "config"),
            "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_HOST_IP": "127.0.0.1",
            "UCX_TLS": "tcp,cma,sm,self",
            "UCX_NET_DEVICES": "lo",
            "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
            "VLLM_NIXL_SIDE_CHANNEL_PORT": str(self._side_channel),
        }

    @property
    def control_path(self) -> Path:
        """What it says makes the stub's transfers go wrong."""
        return self._folder / "mori.json"

    @property
    def _kv_role(self) -> str:
        return "kv_producer" if self.role == "prefill" else "kv_consumer"

    def _moriio(self) -> dict[str, Any]:
        handshake, notify = free_ports(RANKS), free_ports(RANKS)
        self.zmq_address = f"host:127.0.0.1,handshake:{handshake},notify:{notify}"
        extra = {
            "host_ip": "127.0.0.1",
            "http_port": str(self.port),
            "handshake_port": str(handshake),
            "notify_port": str(notify),
            "read_mode": str(self._wiring.mode == "READ").lower(),
            "transfer_timeout": 20,
            "defer_timeout": HOLD_S,
        }
        if self._wiring.registration:
            host, _, port = self._wiring.registration.rpartition(":")
            extra |= {"proxy_ip": host, "proxy_ping_port": port}
        return {
            "kv_connector": "MoRIIOConnector",
            "kv_role": self._kv_role,
            "kv_connector_extra_config": extra,
        }

    def _nixl(self) -> dict[str, Any]:
        return {
            "kv_connector": "NixlConnector",
            "kv_role": self._kv_role,
            "kv_buffer_device": "cpu",
            "kv_connector_extra_config": {
                "backends": ["UCX"],
                "num_threads": 0,
                "kv_lease_duration": HOLD_S,
            },
        }
