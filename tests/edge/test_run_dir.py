"""The run directory: one holder, short paths, and ports that are free."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.edge.run_dir import RunDir, check_ports, default_run_dir
from sidecar.errors import StartError


@pytest.fixture
def base() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(dir="/tmp"))
    yield path
    shutil.rmtree(path)


def test_one_holder_at_a_time(base: Path) -> None:
    """The second is told who has it; after the release it may."""
    first, second = RunDir(base / "run"), RunDir(base / "run")
    first.hold()
    with pytest.raises(StartError, match=f"already running, pid {os.getpid()} "):
        second.hold()
    assert "held" in repr(first)
    assert "not held" in repr(second)
    first.release()
    second.hold()
    second.release()


def test_a_holder_that_dies_lets_go(base: Path) -> None:
    """Whatever it left in the directory does not stop the next."""
    script = (
        "import os, sys; from pathlib import Path; from sidecar.edge.run_dir import RunDir; "
        "RunDir(Path(sys.argv[1])).hold(); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", script, str(base)], check=False, timeout=30)
    assert (base / "lock").exists()
    run_dir = RunDir(base)
    run_dir.hold()
    assert (base / "lock").read_text() == f"{os.getpid()}\n"
    run_dir.release()


def test_release_removes_sockets_lock_and_configuration_and_keeps_state(base: Path) -> None:
    """The registry and the cursors are for the next start."""
    run_dir = RunDir(base)
    run_dir.hold()
    for path in (run_dir.control_socket, run_dir.worker_socket(3), run_dir.config):
        path.touch()
    for path in (run_dir.registry, run_dir.cursors):
        path.touch()
    run_dir.release()
    assert sorted(p.name for p in base.iterdir()) == ["cursors", "registry"]


def test_who_does_not_hold_it_removes_nothing(base: Path) -> None:
    """A second start that failed must not take the first one's sockets."""
    holder, other = RunDir(base), RunDir(base)
    holder.hold()
    holder.control_socket.touch()
    with pytest.raises(StartError):
        other.hold()
    other.release()
    assert holder.control_socket.exists()
    assert (base / "lock").exists()
    holder.release()
    holder.release()


def test_the_directory_is_made_with_its_parents(base: Path) -> None:
    """Also under a path that is not there yet."""
    run_dir = RunDir(base / "a" / "b")
    run_dir.hold()
    assert run_dir.path.is_dir()
    run_dir.release()


def test_a_path_too_long_for_a_socket_is_refused(base: Path) -> None:
    """With the limit, before anything is made; bytes count, not characters."""
    for name in ("x" * 100, "ä" * 50):
        with pytest.raises(StartError, match="too long"):
            RunDir(base / name).hold()
    assert list(base.iterdir()) == []


def test_a_path_that_cannot_be_made_is_a_start_error(base: Path) -> None:
    """Something else lies there."""
    (base / "file").touch()
    with pytest.raises(StartError, match="run_dir: "):
        RunDir(base / "file").hold()


def test_the_default_is_short_and_the_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The session's runtime directory, else one with the user's number."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    assert default_run_dir() == Path("/run/user/7/pd-sidecar")
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert default_run_dir().name == f"pd-sidecar-{os.getuid()}"


@pytest.mark.parametrize("address", ["127.0.0.1", "[::1]"])
def test_a_port_in_use_is_named_with_its_key(address: str) -> None:
    """Also one whose listener would let others share it; a free one passes."""
    host = address.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taken.bind((host, 0))
        taken.listen(1)
        listen = f"{address}:{taken.getsockname()[1]}"
        with pytest.raises(StartError, match=r"^edge\.listen: cannot listen on"):
            check_ports([("admin.listen", f"{address}:0"), ("edge.listen", listen)])
    check_ports([("edge.listen", listen)])


def test_an_address_that_is_not_ours_is_a_start_error() -> None:
    """Nothing on this machine has it."""
    with pytest.raises(StartError, match=r"^edge\.listen"):
        check_ports([("edge.listen", "192.0.2.1:0")])
