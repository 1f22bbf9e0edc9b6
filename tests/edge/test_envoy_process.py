"""A real Envoy process: it outlives its starter, is found again, and ends only when it is ours."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sidecar.edge.envoy_process import (
    EnvoyRecord,
    drain_listeners,
    find_envoy,
    is_answering,
    is_running,
    living_envoy,
    start_envoy,
    stop_envoy,
    wait_until_live,
)
from sidecar.errors import StartError
from sidecar.xds.bootstrap import bootstrap_hash
from tests.ports import free_port

pytestmark = pytest.mark.e2e


def bootstrap(port: int, node_id: str = "pd-process-test") -> dict[str, Any]:
    """Nothing to wait for: live at once."""
    address = {"address": "127.0.0.1", "port_value": port}
    return {
        "node": {"id": node_id, "cluster": "c"},
        "admin": {"address": {"socket_address": address}},
    }


@pytest.fixture
def run_dir() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(dir="/tmp", prefix="pd-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def envoy(run_dir: Path) -> Iterator[EnvoyRecord]:
    record = start_envoy(find_envoy(None), bootstrap(free_port()), run_dir, 1)
    try:
        wait_until_live(record, 15)
        yield record
    finally:
        stop_envoy(record, 5)


def test_a_started_envoy_is_found_again_by_its_node_id(run_dir: Path, envoy: EnvoyRecord) -> None:
    assert living_envoy(run_dir) == envoy
    assert is_answering(envoy, 5)
    assert not is_answering(msgspec.structs.replace(envoy, node_id="somebody else"), 0)
    assert envoy.bootstrap_hash == bootstrap_hash(bootstrap(envoy.admin_port))
    command = Path(f"/proc/{envoy.pid}/cmdline").read_bytes().split(b"\0")
    for argument in (b"--disable-hot-restart", b"86400", b"immediate", b"1"):
        assert argument in command
    assert b"--concurrency" in command


def test_its_streams_and_limits_are_its_own(run_dir: Path, envoy: EnvoyRecord) -> None:
    fd = Path(f"/proc/{envoy.pid}/fd")
    assert str((fd / "0").readlink()) == os.devnull
    assert (fd / "1").readlink() == (fd / "2").readlink() == run_dir / "envoy.log"
    limits = Path(f"/proc/{envoy.pid}/limits").read_text()
    line = next(x for x in limits.splitlines() if x.startswith("Max open files")).split()
    assert line[3] == line[4]
    assert os.getsid(envoy.pid) != os.getsid(0)


def test_stopping_ends_it_and_is_idempotent(run_dir: Path, envoy: EnvoyRecord) -> None:
    stop_envoy(envoy, 5)
    assert not is_running(envoy)
    assert living_envoy(run_dir) is None
    stop_envoy(envoy, 5)
    assert not drain_listeners(envoy)


def test_a_stopped_process_is_killed_when_the_time_is_over(envoy: EnvoyRecord) -> None:
    os.kill(envoy.pid, signal.SIGSTOP)
    stop_envoy(envoy, 0.2)
    assert not is_running(envoy)


def test_listeners_can_be_drained_without_ending_it(envoy: EnvoyRecord) -> None:
    assert drain_listeners(envoy)
    assert is_running(envoy)


def test_a_reused_pid_is_neither_alive_nor_signalled(envoy: EnvoyRecord) -> None:
    other = msgspec.structs.replace(envoy, start_ticks=envoy.start_ticks + 1)
    assert not is_running(other)
    stop_envoy(other, 5)
    assert is_running(envoy)


def test_it_outlives_whoever_started_it_killed_or_not(run_dir: Path) -> None:
    port = free_port()
    code = f"""
import os, signal
from pathlib import Path
from sidecar.edge.envoy_process import *
from tests.edge.test_envoy_process import bootstrap
record = start_envoy(find_envoy(None), bootstrap({port}), Path({str(run_dir)!r}), 1)
wait_until_live(record, 15)
os.kill(os.getpid(), signal.SIGKILL)
"""
    starter = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parents[2], timeout=30, check=False
    )
    assert starter.returncode == -signal.SIGKILL
    record = living_envoy(run_dir)
    assert record is not None
    stop_envoy(record, 5)
    assert not is_running(record)


def test_no_record_or_a_broken_one_is_no_envoy(run_dir: Path) -> None:
    assert living_envoy(run_dir) is None
    for text in (b"{", b"\xff", b"{}", b"\0" * 300, b'{"pid": "\xff"}'):
        (run_dir / "envoy.json").write_bytes(text)
        assert living_envoy(run_dir) is None


def test_one_whose_record_is_lost_or_broken_is_found_by_its_bootstrap(
    run_dir: Path, envoy: EnvoyRecord
) -> None:
    """Its starter may have been killed before it wrote the record, and must not lose it."""
    path = run_dir / "envoy.json"
    for text in (b"\xff{", None, b'{"pid": 1}'):
        path.unlink(missing_ok=True)
        if text is not None:
            path.write_bytes(text)
        found = living_envoy(run_dir)
        assert found is not None
        assert msgspec.structs.replace(found, log_offset=envoy.log_offset) == envoy
        assert is_answering(found, 5)
    (run_dir / "envoy-bootstrap.json").write_text("{")
    found = living_envoy(run_dir)
    assert found is not None
    assert (found.pid, found.start_ticks) == (envoy.pid, envoy.start_ticks)
    assert not is_answering(found, 0)


def test_a_stopped_one_is_alive_though_it_does_not_answer(
    run_dir: Path, envoy: EnvoyRecord
) -> None:
    os.kill(envoy.pid, signal.SIGSTOP)
    assert living_envoy(run_dir) == envoy
    assert not is_answering(envoy, 0)


def test_a_start_that_fails_gives_envoys_reason_and_the_log(run_dir: Path) -> None:
    broken = bootstrap(free_port()) | {"no_such_field": 1}
    record = start_envoy(find_envoy(None), broken, run_dir, 1)
    with pytest.raises(StartError, match=rf"no_such_field.*{run_dir}/envoy\.log"):
        wait_until_live(record, 15)


def test_an_admin_port_in_use_is_named(run_dir: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        record = start_envoy(find_envoy(None), bootstrap(taken.getsockname()[1]), run_dir, 1)
        with pytest.raises(StartError, match=r"[Aa]ddress already in use"):
            wait_until_live(record, 15)


def test_a_program_that_cannot_run_is_named(run_dir: Path) -> None:
    record = start_envoy(run_dir / "nothing", bootstrap(free_port()), run_dir, 1)
    with pytest.raises(StartError, match=r"cannot run .*nothing"):
        wait_until_live(record, 15)


def test_envoy_is_looked_for_on_the_path_and_beside_the_interpreter(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def program(directory: str) -> Path:
        path = run_dir / directory / "envoy"
        path.parent.mkdir()
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)
        return path

    configured, on_path, beside = program("a"), program("b"), program("c")
    monkeypatch.setattr(sys, "executable", str(beside.with_name("python")))
    monkeypatch.setenv("PATH", str(on_path.parent))
    assert find_envoy(str(configured)) == configured
    assert find_envoy(None) == on_path
    monkeypatch.setenv("PATH", "")
    assert find_envoy(None) == beside
    beside.unlink()
    with pytest.raises(StartError, match="pip install"):
        find_envoy(None)
    with pytest.raises(StartError, match=r"envoy\.path"):
        find_envoy(str(run_dir / "nothing"))
