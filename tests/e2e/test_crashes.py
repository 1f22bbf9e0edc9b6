"""What dies does not take running streams with it, and comes back right."""

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable

import aiohttp
import pytest
import yaml

from tests.e2e.load import Answer, run_right, stream
from tests.e2e.stack import Stack, http, until

pytestmark = [pytest.mark.e2e, pytest.mark.timed]

REPORT_S = 2.0
CONFIG = {
    "registration": {"ttl_s": 30},
    "tuning": {"access_log": {"report_interval_s": REPORT_S}},
}
BODY = {"model": "sim-model", "prompt": "hello", "max_tokens": 1}


async def streams_around(
    stack: Stack, count: int, tokens: int, act: Callable[[], None]
) -> list[Answer]:
    """Start `count` streams, `act` in a thread once all have begun, and wait for their ends."""
    timeout = aiohttp.ClientTimeout(total=120)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        answers = [Answer() for _ in range(count)]
        tasks = [
            asyncio.create_task(stream(session, stack.url, f"stream {i}", tokens, answer))
            for i, answer in enumerate(answers)
        ]
        await asyncio.to_thread(until, lambda: all(a.text for a in answers), "all have begun")
        await asyncio.to_thread(act)
        return list(await asyncio.gather(*tasks))


@pytest.mark.parametrize(("mode", "pause_s"), [("READ", 1), ("WRITE", 1), ("READ", 20)])
def test_kill_9_of_the_sidecar_breaks_no_stream(
    stack_of: Callable[..., Stack], mode: str, pause_s: int
) -> None:
    """50 streams outlive all Python processes; started again it serves within 2 s and counts right.

    Meanwhile new requests get 503 in OpenAI's shape, from Envoy alone.
    """
    stack = stack_of(CONFIG, workers=2)
    prefill, decode = stack.fleet([1, 1], [1, 1], mode, tokens_per_s=5)
    pid = stack.envoy_pid()

    def crash_and_return() -> None:
        stack.kill_sidecar()
        down_since = time.monotonic()
        status, body = http("POST", f"{stack.url}/v1/completions", BODY)
        assert status == 503
        assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}
        until(lambda: time.monotonic() - down_since >= pause_s, "the pause", pause_s + 1)
        asked = time.monotonic()
        stack.start()
        until(
            lambda: http("POST", f"{stack.url}/v1/completions", BODY)[0] == 200,
            "served again",
            2 - (time.monotonic() - asked) + 0.001,
        )
        assert stack.envoy_pid() == pid, "the living Envoy was not adopted"
        # The truth: what the engines themselves have running.
        until(
            lambda: stack.in_flight()["decode"] == sum(e.state()["running"] for e in decode),
            "in-flight counts are right again",
            3 * REPORT_S,
        )
        assert stack.in_flight()["decode"] >= 50, "the streams ended too early to prove anything"

    answers = asyncio.run(streams_around(stack, 50, 5 * (pause_s + 10), crash_and_return))
    assert all(a.is_right for a in answers), [a for a in answers if not a.is_right][:3]
    until(lambda: stack.in_flight() == {"prefill": 0, "decode": 0}, "all released")
    assert stack.metric("pd_sidecar_lost_exchanges_total") == 0
    for engine in (*prefill, *decode):
        assert not engine.state()["errors"]


def test_killed_worker_costs_no_new_request(stack_of: Callable[..., Stack]) -> None:
    """With one of two workers killed every later request is served, and it is back within 2 s."""
    stack = stack_of(CONFIG, workers=2)
    stack.fleet([1, 1], [1, 1])
    for _ in range(3):
        os.kill(stack.child_pids("--index=0")[-1], signal.SIGKILL)
        run_right(stack.url, 40, 8)
        until(lambda: (stack.status() or {}).get("workers") == 2, "the worker is back", 2)
    until(lambda: stack.in_flight() == {"prefill": 0, "decode": 0}, "all released")


def test_stopped_worker_is_killed_and_replaced(stack_of: Callable[..., Stack]) -> None:
    """A worker that is stopped (it would pass a TCP check) is replaced within 5 s of silence."""
    stack = stack_of(CONFIG, workers=2)
    stack.fleet([1], [1])
    (worker,) = [p for p in stack.child_pids("worker") if p in stack.child_pids("--index=1")]
    os.kill(worker, signal.SIGSTOP)
    until(lambda: worker not in stack.child_pids(), "the stopped worker is gone", 8)
    until(lambda: (stack.status() or {}).get("workers") == 2, "it is replaced", 3)
    run_right(stack.url, 40, 8)


def test_killed_control_process_is_replaced(stack_of: Callable[..., Stack]) -> None:
    """Workers serve their last view meanwhile; registry and counts are right afterwards."""
    stack = stack_of(CONFIG, workers=2)
    prefill, decode = stack.fleet([1, 1], [1, 1], tokens_per_s=10)

    def crash() -> None:
        (control,) = stack.child_pids("control")
        os.kill(control, signal.SIGKILL)
        run_right(stack.url, 20, 4, tokens=2)
        until(lambda: len((stack.status() or {}).get("instances", [])) == 4, "control is back", 3)
        until(
            lambda: stack.in_flight()["decode"] == sum(e.state()["running"] for e in decode) >= 20,
            "in-flight counts are right again",
            3 * REPORT_S,
        )
        stack.wait_placeable(*prefill, *decode, timeout_s=3)

    answers = asyncio.run(streams_around(stack, 20, 120, crash))
    assert all(a.is_right for a in answers), [a for a in answers if not a.is_right][:3]
    until(lambda: stack.in_flight() == {"prefill": 0, "decode": 0}, "all released")


def test_killed_envoy_is_started_again(stack_of: Callable[..., Stack]) -> None:
    """`up` starts Envoy anew, and what the old one carried is closed as lost."""
    stack = stack_of(CONFIG, workers=1)
    stack.fleet([1], [1], tokens_per_s=5)

    def crash() -> None:
        os.kill(stack.envoy_pid(), signal.SIGKILL)

    answers = asyncio.run(streams_around(stack, 5, 60, crash))
    assert not any(a.is_complete for a in answers)
    until(lambda: http("POST", f"{stack.url}/v1/completions", BODY)[0] == 200, "serves again", 10)
    until(lambda: stack.in_flight() == {"prefill": 0, "decode": 0}, "all released", 10)
    assert stack.metric("pd_sidecar_lost_exchanges_total") == 5


def test_a_start_that_fails_cuts_no_stream(stack_of: Callable[..., Stack]) -> None:
    """After a crash, with an edge that cannot be bound: the living Envoy goes on alone."""
    stack = stack_of(CONFIG)
    stack.fleet([1], [1], tokens_per_s=10)
    envoy = stack.envoy_pid()

    def start_in_vain() -> None:
        stack.kill_sidecar()
        with socket.create_server(("127.0.0.1", 0)) as taken:
            config = yaml.safe_load(stack.config_path.read_text())
            config["edge"]["listen"] = f"127.0.0.1:{taken.getsockname()[1]}"
            stack.config_path.write_text(yaml.safe_dump(config))
            assert stack.spawn().wait(20) == 1
        assert "Address already in use" in stack.log()
        assert stack.is_alive(envoy)

    answers = asyncio.run(streams_around(stack, 3, 40, start_in_vain))
    assert all(a.is_right for a in answers)


def test_removed_run_directory_is_made_again(stack_of: Callable[..., Stack]) -> None:
    """Sockets, lock and configuration are gone; seconds later it serves the same pool again, its
    children can start again, and a second sidecar is refused. Streams do not notice."""
    stack = stack_of(CONFIG, workers=2)
    stack.fleet([1], [1], tokens_per_s=10)

    def remove() -> None:
        shutil.rmtree(stack.folder / "run")
        until(lambda: "making it again" in stack.log(), "it is noticed", 5)
        before = stack.child_pids()
        until(lambda: not set(before) & set(stack.child_pids()), "all children are new", 5)
        until(lambda: http("POST", f"{stack.url}/v1/completions", BODY)[0] == 200, "serves", 5)
        os.kill(stack.child_pids("--index=0")[-1], signal.SIGKILL)
        until(lambda: (stack.status() or {}).get("workers") == 2, "the worker is back", 5)
        done = subprocess.run(
            [sys.executable, "-m", "sidecar", "up", "--config", str(stack.config_path)],
            capture_output=True,
            timeout=20,
            check=False,
        )
        assert b"already running" in done.stderr

    answers = asyncio.run(streams_around(stack, 5, 60, remove))
    assert all(a.is_right for a in answers)
    until(lambda: stack.in_flight() == {"prefill": 0, "decode": 0}, "all released")


def test_standing_still_loses_nothing(stack_of: Callable[..., Stack]) -> None:
    """Everything is stopped for longer than every patience (a paused container): it goes on with
    the same processes, the same pool and the same open exchanges."""
    stack = stack_of(
        {"registration": {"ttl_s": 2}, "tuning": {"access_log": {"report_interval_s": 1}}}
    )
    _, decode = stack.fleet([1], [1], tokens_per_s=5)
    assert stack.process is not None
    sidecar = [stack.process.pid, *stack.child_pids()]
    everybody = [*sidecar, stack.envoy_pid(), *(engine.process.pid for engine in stack.engines)]

    def stand_still() -> None:
        until(lambda: stack.in_flight()["decode"] == 5, "all are counted")
        for pid in everybody:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(5.6)
        for pid in everybody:
            os.kill(pid, signal.SIGCONT)
        deadline = time.monotonic() + 2
        while time.monotonic() < deadline:
            assert stack.in_flight()["decode"] == decode[0].state()["running"] == 5
            assert len(stack.placeable()) == 2
        assert [stack.process.pid, *stack.child_pids()] == sidecar

    answers = asyncio.run(streams_around(stack, 5, 55, stand_still))
    assert all(a.is_right for a in answers)
    assert stack.metric("pd_sidecar_lost_exchanges_total") == 0
