"""A stop leaves nothing; a start that cannot succeed says why in one line."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.stack import Stack, http, until
from tests.e2e.test_crashes import streams_around
from tests.ports import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.timed]


def refuses(*arguments: str, timeout_s: float = 20) -> str:
    """Run the command, which must fail; its one line on stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "sidecar", *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    return lines[0]


def is_free(url: str) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", int(url.rpartition(":")[2])))
        except OSError:
            return False
    return True


def test_sigterm_drains_and_leaves_nothing(stack_of: Callable[..., Stack]) -> None:
    """Running streams end whole, new requests get 503, then no process, socket or port is left."""
    stack = stack_of(workers=2)
    stack.fleet([1, 1], [1, 1], tokens_per_s=10)
    envoy = stack.envoy_pid()
    assert stack.process is not None
    process = stack.process

    def stop() -> None:
        process.send_signal(signal.SIGTERM)

        def is_refused() -> bool:
            status, body = http("POST", f"{stack.url}/v1/completions", {"prompt": "x"})
            return status == 503 and b"draining" in body

        until(is_refused, "new requests are refused as draining", 3)
        assert process.poll() is None, "it ended before its streams"

    answers = asyncio.run(streams_around(stack, 20, 40, stop))
    assert all(a.is_right for a in answers)
    assert process.wait(20) == 0
    assert not stack.child_pids()
    assert not stack.is_alive(envoy)
    assert not list((stack.folder / "run").glob("*.sock"))
    for url in (stack.url, stack.admin, stack.observe, stack.envoy_admin, stack.registration):
        assert is_free(url), url


def test_second_signal_ends_at_once(stack_of: Callable[..., Stack]) -> None:
    """A second Ctrl-C does not wait for the streams, and still leaves no process."""
    stack = stack_of()
    stack.fleet([1], [1], tokens_per_s=2)
    envoy = stack.envoy_pid()
    assert stack.process is not None
    process = stack.process

    def stop_twice() -> None:
        process.send_signal(signal.SIGINT)
        until(lambda: "draining" in stack.log(), "draining", 3)
        process.send_signal(signal.SIGINT)
        process.wait(8)

    answers = asyncio.run(streams_around(stack, 3, 100, stop_twice))
    assert not any(a.is_complete for a in answers)
    assert not stack.child_pids()
    assert not stack.is_alive(envoy)


def left_of(stack: Stack) -> list[str]:
    """The command lines of running processes that name this stack's folder."""
    shown = subprocess.run(["ps", "ax", "-o", "stat=,args="], capture_output=True, check=True)
    lines = shown.stdout.decode().splitlines()
    return [line for line in lines if str(stack.folder) in line and not line.startswith("Z")]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("after", ["lock", "envoy-bootstrap.json", "control.sock"])
def test_a_signal_while_it_starts_leaves_nothing(number: signal.Signals, after: str) -> None:
    """Ctrl-C, and a terminal that closes, in every phase before it is ready."""
    stack = Stack()
    try:
        process = stack.spawn()
        until(lambda: (stack.folder / "run" / after).exists(), f"{after} is there")
        process.send_signal(number)
        assert process.wait(10) == 0, stack.log()
        until(lambda: not left_of(stack), "all have ended", 5)
        assert "Traceback" not in stack.log()
    finally:
        stack.close()


def test_a_terminal_that_closes_ends_all(stack_of: Callable[..., Stack]) -> None:
    """SIGHUP is a stop like SIGTERM: no Envoy is left behind."""
    stack = stack_of()
    assert stack.process is not None
    stack.process.send_signal(signal.SIGHUP)
    assert stack.process.wait(15) == 0
    assert not left_of(stack)


def test_an_envoy_that_does_not_answer_is_ended(stack_of: Callable[..., Stack]) -> None:
    """Stopped or stuck, and without a record: `down` still finds the one it is to end."""
    stack = stack_of()
    envoy = stack.envoy_pid()
    os.kill(envoy, signal.SIGSTOP)
    stack.kill_sidecar()
    (stack.folder / "run" / "envoy.json").unlink()
    done = subprocess.run(
        [sys.executable, "-m", "sidecar", "down", "--config", str(stack.config_path)],
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    assert f"ended Envoy, pid {envoy}" in done.stdout
    assert not stack.is_alive(envoy)


@pytest.mark.parametrize("redirection", ["| true", "> /dev/full", ">&-", ">&- 2>&- <&-"])
def test_nobody_has_to_read_what_it_prints(redirection: str) -> None:
    """A reader that went, a full disk, and closed descriptors end no service."""
    stack = Stack()
    try:
        command = f"{sys.executable} -m sidecar up --config {stack.config_path} {redirection}"
        with (stack.folder / "up.log").open("ab") as log:
            shell = subprocess.Popen(
                ["bash", "-c", command], stdout=log, stderr=log, start_new_session=True
            )
        until(lambda: http("GET", f"{stack.url}/health")[0] == 503, "the edge answers")
        until(lambda: (stack.status() or {}).get("workers") == 1, "the worker is connected")
        if "2>&-" not in redirection:  # else nothing is logged, and any moment must do
            until(lambda: "sidecar.app.up: started" in stack.log(), "its banner is due")
        os.killpg(shell.pid, signal.SIGTERM)
        shell.wait(15)
        until(lambda: not left_of(stack), "all have ended", 15)
        log_text = stack.log()
        assert "stopping: draining first" in log_text or "2>&-" in redirection
        assert "Traceback" not in log_text
        assert "Assertion" not in log_text
    finally:
        stack.close()


def test_port_in_use_is_named() -> None:
    """One line names the key and the port."""
    with socket.socket() as taken, tempfile.TemporaryDirectory(prefix="pd-", dir="/tmp") as folder:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        free = [f"127.0.0.1:{free_port()}" for _ in range(4)]
        line = refuses(
            "up",
            f"--run-dir={folder}/run",
            f"--listen={listen}",
            f"--registration=tcp://{free[0]}",
            f"--observe={free[1]}",
            f"--admin={free[2]}",
            f"--envoy-admin={free[3]}",
        )
        assert "edge.listen" in line
        assert listen in line


def test_second_sidecar_is_refused(stack_of: Callable[..., Stack]) -> None:
    """The same run directory twice: 'already running' with the pid."""
    stack = stack_of()
    assert stack.process is not None
    line = refuses("up", "--config", str(stack.config_path))
    assert f"already running, pid {stack.process.pid}" in line


def test_no_envoy_is_named(tmp_path: Path) -> None:
    """A path that is no Envoy: one line with that path."""
    config = tmp_path / "c.yaml"
    config.write_text("envoy: {path: /nowhere/envoy}\n")
    assert "/nowhere/envoy" in refuses("up", "--config", str(config))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("edge: {lisen: x}", "edge.lisen"),
        ("workers: many", "workers"),
        ("nonsense: 1", "nonsense"),
        ("probe: {interval_s: -1}", "probe.interval_s"),
        ("edge: {listen: nowhere}", "edge.listen"),
        ("a: [", "not YAML"),
    ],
)
def test_bad_configuration_names_its_key(tmp_path: Path, text: str, said: str) -> None:
    """Every fault is one line with its key, for `up` and `check` alike."""
    config = tmp_path / "c.yaml"
    config.write_text(text)
    assert said in refuses("up", "--config", str(config))
    assert said in refuses("check", "--config", str(config))


def test_status_without_a_sidecar_says_so() -> None:
    """`status` names the address that does not answer."""
    listen = f"127.0.0.1:{free_port()}"
    assert listen in refuses("status", "--admin", listen)
