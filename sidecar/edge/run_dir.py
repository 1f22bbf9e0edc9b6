"""The run directory: sockets, lock and state of one sidecar on one machine (design §2).

Only one `up` or `serve` holds it at a time, by `flock` on `lock`.
"""

import contextlib
import fcntl
import os
import socket
import tempfile
from collections.abc import Iterable
from pathlib import Path

from sidecar.errors import StartError

UNIX_PATH_MAX = 107
LONGEST_SOCKET = "control.sock"


class RunDir:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None
        self._folder: int | None = None

    def __repr__(self) -> str:
        return f"<RunDir {self.path} {'held' if self._lock is not None else 'not held'}>"

    @property
    def control_socket(self) -> Path:
        """ADS and ALS"""
        return self.path / LONGEST_SOCKET

    @property
    def link_socket(self) -> Path:
        """views and records"""
        return self.path / "link.sock"

    @property
    def cursors(self) -> Path:
        return self.path / "cursors"

    @property
    def registry(self) -> Path:
        return self.path / "registry"

    @property
    def config(self) -> Path:
        return self.path / "config.json"

    def transfers(self, worker: int) -> Path:
        """what decode engines wait for of this worker"""
        return self.path / f"transfers.w{worker}"

    def abandoned_transfers(self, workers: int) -> list[Path]:
        """of workers that there are no more, when so many are"""
        kept = {self.transfers(index) for index in range(workers)}
        return sorted(path for path in self.path.glob("transfers.w*") if path not in kept)

    def worker_socket(self, index: int) -> Path:
        return self.path / f"w{index}.sock"

    def hold(self) -> None:
        """Make the directory and take its lock. Raises StartError with the pid of who has it."""
        longest = self.path / LONGEST_SOCKET
        if len(os.fsencode(longest)) > UNIX_PATH_MAX:
            raise StartError(
                f"run_dir: {self.path} is too long for a unix socket; choose a path of at most "
                f"{UNIX_PATH_MAX - len(LONGEST_SOCKET) - 1} bytes"
            )
        if "%" in str(self.path):
            raise StartError(f"run_dir: {self.path}: gRPC takes % for an escape; choose another")
        while (fd := self._try_lock()) is None:
            pass
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        self._lock = fd
        self._keep_cleaners_out()

    def is_held(self) -> bool:
        """Whether it is still there and ours: somebody may have removed it."""
        if self._lock is None or not self.config.exists():
            return False
        try:
            return os.path.samestat((self.path / "lock").stat(), os.fstat(self._lock))
        except FileNotFoundError:
            return False

    def hold_again(self) -> None:
        """Make it anew after it was removed. Raises StartError if another sidecar has it now."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        self.hold()

    def _keep_cleaners_out(self) -> None:
        """systemd-tmpfiles leaves a directory alone that is locked (tmpfiles.d(5)); else it would
        remove what has not changed for days."""
        if self._folder is not None:
            os.close(self._folder)
        self._folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with contextlib.suppress(OSError):
            fcntl.flock(self._folder, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def _try_lock(self) -> int | None:
        """The lock's file descriptor; None: its file was removed by the holder before, try again.
        Raises StartError."""
        path = self.path / "lock"
        try:
            self.path.mkdir(mode=0o770, parents=True, exist_ok=True)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o660)
        except OSError as error:
            raise StartError(f"run_dir: {self.path}: {error.strerror}") from None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.read(fd, 32).decode(errors="replace").strip() or "unknown"
            os.close(fd)
            raise StartError(
                f"already running, pid {pid} (run directory {self.path}); stop it or choose "
                "another run_dir"
            ) from None
        try:
            if os.path.samestat(path.stat(), os.fstat(fd)):
                return fd
        except FileNotFoundError:
            pass
        os.close(fd)
        return None

    def release(self) -> None:
        """Remove what a stop must not leave behind, and give up the lock. Not held: nothing."""
        if self._lock is None:
            return
        for path in (*self.path.glob("*.sock"), self.config, self.path / "lock"):
            path.unlink(missing_ok=True)
        os.close(self._lock)
        self._lock = None
        if self._folder is not None:
            os.close(self._folder)
            self._folder = None


def default_run_dir() -> Path:
    """A short per-user runtime directory."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    base = Path(runtime) if runtime else Path(tempfile.gettempdir())
    return base / ("pd-sidecar" if runtime else f"pd-sidecar-{os.getuid()}")


def check_ports(listeners: Iterable[tuple[str, str]]) -> None:
    """Try to bind each (key, `ip:port`); raises StartError naming every one that cannot be had.

    With SO_REUSEADDR alone: Envoy's SO_REUSEPORT would share an edge with a stale Envoy silently.
    """
    faults = []
    for key, listen in listeners:
        reason = _cannot_bind(listen)
        if reason:
            faults.append(f"{key}: cannot listen on {listen}: {reason}")
    if faults:
        raise StartError(f"{'; '.join(faults)} (stop what uses it, or choose another address)")


def _cannot_bind(listen: str) -> str:
    host, _, port = listen.rpartition(":")
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, int(port)))
            probe.listen(1)
        except OSError as error:
            return error.strerror or str(error)
    return ""
