"""The supervisor: what dies comes back, what is silent is killed, and nothing outlives it."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from time import monotonic

import pytest
from polling import until

from sidecar.edge.supervisor import CANNOT_START, ChildSpec, Supervisor

BEAT_ONCE = "import os, sys; fd = int(sys.argv[1]); os.write(fd, b'.'); "
WAIT_FOR_END = BEAT_ONCE + "os.read(fd, 1)"
BEAT_ON = BEAT_ONCE + "import time\nwhile True: time.sleep(0.1); os.write(fd, b'.')"
IGNORES_ALL = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    + BEAT_ONCE
    + "print('deaf', flush=True); time.sleep(600)"
)


def spec(script: str, name: str = "child", **what: object) -> ChildSpec:
    def command(fd: int) -> list[str]:
        return [sys.executable, "-S", "-c", script, str(fd)]

    return ChildSpec(name, command, **what)


def pid_of(supervisor: Supervisor, name: str = "child") -> int:
    process = supervisor.children[name].process
    return process.pid if process is not None and process.returncode is None else 0


def lives(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


def is_zombie(pid: int) -> bool:
    """Ended, and whoever inherited it has not asked yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.asyncio
async def test_a_killed_child_comes_back() -> None:
    """Within the back-off, as another process, and is counted."""
    supervisor = Supervisor([spec(WAIT_FOR_END)])
    supervisor.start()
    await until(lambda: pid_of(supervisor))
    first = pid_of(supervisor)
    os.kill(first, signal.SIGKILL)
    await until(lambda: pid_of(supervisor) not in (0, first))
    assert supervisor.children["child"].exits == 1
    await supervisor.close()


@pytest.mark.asyncio
async def test_a_child_that_cannot_live_is_started_ever_more_seldom() -> None:
    """The pause doubles: some starts in a second, not hundreds."""
    supervisor = Supervisor([spec("raise SystemExit(3)")])
    supervisor.start()
    started = monotonic()
    await until(lambda: supervisor.children["child"].exits >= 5)
    assert monotonic() - started > 0.05 + 0.1 + 0.2 + 0.4
    await supervisor.close()


@pytest.mark.asyncio
async def test_a_command_that_cannot_be_executed_is_tried_again() -> None:
    """It ends neither the supervisor nor the care for this child."""
    missing = ChildSpec("child", lambda _fd: ["/nowhere/at/all"])
    supervisor = Supervisor([missing, spec(WAIT_FOR_END, "other")])
    supervisor.start()
    await until(lambda: supervisor.children["child"].exits >= 2)
    assert pid_of(supervisor, "other")
    await supervisor.close()
    once = Supervisor([ChildSpec("child", lambda _fd: ["/nowhere/at/all"], restarts=False)])
    once.start()
    assert await once._tasks["child"] == CANNOT_START


@pytest.mark.asyncio
async def test_a_child_that_falls_silent_is_killed_and_comes_back() -> None:
    """SIGSTOP: it would still pass a TCP check."""
    supervisor = Supervisor([spec(BEAT_ON, silence_s=0.5)])
    supervisor.start()
    await until(lambda: pid_of(supervisor))
    first = pid_of(supervisor)
    await asyncio.sleep(1.0)
    assert pid_of(supervisor) == first, "killed though it beats"
    os.kill(first, signal.SIGSTOP)
    await until(lambda: pid_of(supervisor) not in (0, first))
    assert not lives(first)
    await supervisor.close(timeout_s=0.2)


@pytest.mark.asyncio
async def test_a_child_that_never_speaks_is_killed_after_its_start_time() -> None:
    """And one that needs not speak is left alone."""
    silent = "import time; time.sleep(600)"
    supervisor = Supervisor([spec(silent, start_s=0.3), spec(silent, "quiet", beats=False)])
    supervisor.start()
    await until(lambda: pid_of(supervisor, "quiet"))
    quiet = pid_of(supervisor, "quiet")
    await until(lambda: supervisor.children["child"].exits >= 1)
    assert pid_of(supervisor, "quiet") == quiet
    await supervisor.close(timeout_s=0.2)
    assert not lives(quiet)


@pytest.mark.asyncio
async def test_close_ends_all_by_the_end_of_file() -> None:
    """No signal is needed, and none comes back."""
    supervisor = Supervisor([spec(WAIT_FOR_END, name) for name in ("a", "b")])
    supervisor.start()
    await until(lambda: pid_of(supervisor, "a") and pid_of(supervisor, "b"))
    pids = [pid_of(supervisor, name) for name in ("a", "b")]
    started = monotonic()
    await supervisor.close()
    assert monotonic() - started < 2
    assert not any(lives(pid) for pid in pids)
    assert [await task for task in supervisor._tasks.values()] == [0, 0]
    await supervisor.close()


@pytest.mark.asyncio
async def test_close_kills_what_does_not_end(tmp_path: Path) -> None:
    """After the limit, with SIGKILL."""
    output = tmp_path / "out"
    supervisor = Supervisor([spec(IGNORES_ALL, output=output)])
    supervisor.start()
    await until(lambda: output.exists() and output.read_text() == "deaf\n")
    pid = pid_of(supervisor)
    await supervisor.close(timeout_s=0.2)
    assert not lives(pid)
    assert supervisor._tasks["child"].done()


@pytest.mark.asyncio
async def test_close_does_not_wait_for_a_back_off() -> None:
    """A child that is between two lives is simply not started again."""
    supervisor = Supervisor([spec("raise SystemExit(1)")])
    supervisor.start()
    await until(lambda: supervisor.children["child"].exits >= 4)
    started = monotonic()
    await supervisor.close()
    assert monotonic() - started < 0.5
    assert supervisor._tasks["child"].done()


@pytest.mark.asyncio
async def test_close_while_a_child_is_being_started_leaves_none() -> None:
    """The end of file reaches it as soon as it has its lifeline."""
    supervisor = Supervisor([spec(WAIT_FOR_END)])
    supervisor.start()
    await asyncio.sleep(0)
    started = monotonic()
    await supervisor.close()
    assert monotonic() - started < 2.5
    assert pid_of(supervisor) == 0
    assert supervisor._tasks["child"].done()


@pytest.mark.asyncio
async def test_stop_one_asks_and_says_whether_it_ended(tmp_path: Path) -> None:
    """SIGTERM; True within the limit, False beyond it; the others go on."""
    output = tmp_path / "b"
    supervisor = Supervisor([spec(WAIT_FOR_END, "a"), spec(IGNORES_ALL, "b", output=output)])
    supervisor.start()
    await until(lambda: pid_of(supervisor, "a") and pid_of(supervisor, "b"))
    assert await supervisor.stop_one("a", 5)
    stubborn = pid_of(supervisor, "b")
    await until(lambda: output.read_text() == "deaf\n")
    assert not await supervisor.stop_one("b", 0.2)
    assert lives(stubborn)
    await supervisor.close(timeout_s=0.2)
    assert not lives(stubborn)


@pytest.mark.asyncio
async def test_a_child_does_not_outlive_a_supervisor_that_dies() -> None:
    """SIGKILL of the supervisor: its end of the pair is closed by the kernel."""
    script = f"""
import asyncio, sys
from sidecar.edge.supervisor import ChildSpec, Supervisor
def command(fd):
    return [sys.executable, "-S", "-c", {WAIT_FOR_END!r}, str(fd)]
async def main():
    supervisor = Supervisor([ChildSpec("c", command)])
    supervisor.start()
    while supervisor.children["c"].process is None:
        await asyncio.sleep(0.01)
    print(supervisor.children["c"].process.pid, flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    child = int(await asyncio.wait_for(process.stdout.readline(), 20))
    assert lives(child)
    process.kill()
    await process.wait()
    await until(lambda: not lives(child) or is_zombie(child))


@pytest.mark.asyncio
async def test_a_childs_output_goes_to_its_file(tmp_path: Path) -> None:
    """Appended, so that the log of an earlier life stays."""
    path = tmp_path / "log"
    path.write_text("before\n")
    supervisor = Supervisor([spec("print('hello')", output=path, restarts=False)])
    supervisor.start()
    assert await supervisor._tasks["child"] == 0
    assert path.read_text() == "before\nhello\n"


def test_the_supervisor_stays_small() -> None:
    """What is heavy, or could hurt it, is the children's alone (design §2)."""
    script = "import sidecar.edge.supervisor, sys; print({'grpc', 'zmq'} & set(sys.modules))"
    command = [sys.executable, "-c", script]
    assert subprocess.run(command, capture_output=True, check=True).stdout == b"set()\n"


@pytest.mark.asyncio
async def test_a_stop_of_our_own_is_no_silence_of_the_children() -> None:
    """After Ctrl-Z, or a paused container, those that beat meanwhile are not killed."""
    supervisor = Supervisor([spec(BEAT_ON, silence_s=1.0)])
    supervisor.start()
    try:
        await until(lambda: pid_of(supervisor))
        pid = pid_of(supervisor)
        await asyncio.sleep(0.3)
        time.sleep(2.5)  # noqa: ASYNC251  the loop stands still, as it does when stopped
        await asyncio.sleep(1.5)
        assert pid_of(supervisor) == pid
    finally:
        await supervisor.close()
