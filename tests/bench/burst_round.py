"""One round of a burst: the engines hold, all clients send, the engines let go, all is read.

Measures; judges nothing (`burst_report` does). Every wait has a limit.
"""

import json
import queue
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from tests.bench.generator import CLOSED, PATH, RESET
from tests.bench.kernel_counters import TcpCounters, read_tcp_counters
from tests.e2e.stack import Engine, Stack

HOLD_LIMIT_S = 30.0
"""the engines answer by themselves after that"""
POLL_S = 0.1
# The three parts of a round; together below 120 s.
CONNECT_LIMIT_S = 35.0
"""the generator's own 30 s, and what it takes to make its prompts"""
ANSWER_LIMIT_S = 60.0
"""the hold and the answers"""
SETTLE_LIMIT_S = 20.0
"""Envoy writes its access log out every 10 s"""
SLACK_S = 3.0
"""between the generator's own limit and ours"""
SETTLE_POLL_S = 0.3

T = TypeVar("T")


class GeneratorError(Exception):
    """The generator did not do its part; the message says which."""


@dataclass(frozen=True, slots=True)
class Times:
    """Of one answer, in seconds: to its first and last byte since it was sent, and to its first
    byte since the engines let go."""

    first: float
    total: float
    after_release: float


@dataclass(frozen=True, slots=True)
class Round:
    """What one round showed. `flags` and `ext_proc_errors` are counts from Envoy's access log."""

    number: int
    clients: int
    connected: int
    connect_s: tuple[float, ...]
    retransmitted_connects: int
    tcp: TcpCounters
    held_most: int
    hold_s: float
    statuses: dict[int, int]
    faults: dict[str, int]
    times: tuple[Times, ...]
    logged: int
    flags: dict[str, int]
    ext_proc_errors: dict[str, int]
    engine_errors: dict[str, int]
    in_flight_after: int
    seconds: float

    @property
    def complete(self) -> int:
        """Answers that were right to the last byte."""
        return self.clients - sum(self.faults.values())

    @property
    def resets(self) -> int:
        """Connections that ended before their answer did."""
        return sum(n for fault, n in self.faults.items() if fault in (RESET, CLOSED))


class Generator:
    """The generator's process, for one round."""

    def __init__(self, address: str, clients: int, name: str) -> None:
        command = [sys.executable, "-m", "tests.bench.generator"]
        command += [f"--address={address}", f"--clients={clients}", f"--name={name}"]
        command += [f"--limit-s={ANSWER_LIMIT_S}"]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def hear(self, limit_s: float, what: str) -> dict[str, Any]:
        """Its next message."""
        try:
            line = self._lines.get(timeout=limit_s)
        except queue.Empty:
            raise GeneratorError(f"the generator: no {what} within {limit_s:.0f} s") from None
        if not line:
            raise GeneratorError(f"the generator ended without {what}")
        return json.loads(line)

    def go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


def run_round(stack: Stack, prefills: list[Engine], number: int, clients: int) -> Round:
    """Run one round. Raises GeneratorError, and AssertionError if a part of the stack is silent."""
    started = time.monotonic()
    logged_before = len(logged(stack))
    tcp_before = read_tcp_counters()
    for engine in stack.engines:
        engine.ask("reset")
    for engine in prefills:
        engine.ask("hold", hold=True, limit_s=HOLD_LIMIT_S)
    generator = Generator(stack.url.removeprefix("http://"), clients, f"round-{number}")
    try:
        hello = generator.hear(CONNECT_LIMIT_S, "connections")
        generator.go()
        sent_at = time.monotonic()
        held_most = wait_held(prefills, hello["connected"])
        released_at = release(prefills)
        result = generator.hear(ANSWER_LIMIT_S + SLACK_S, "answers")
    finally:
        generator.close()
    deadline = time.monotonic() + SETTLE_LIMIT_S
    entries = settled(
        lambda: logged(stack)[logged_before:], lambda new: len(new) >= clients, deadline
    )
    in_flight = settled(lambda: sum(stack.in_flight().values()), lambda held: held == 0, deadline)
    return Round(
        number=number,
        clients=clients,
        connected=hello["connected"],
        connect_s=tuple(hello["connect_s"]),
        retransmitted_connects=hello["retransmitted"],
        tcp=read_tcp_counters() - tcp_before,
        held_most=held_most,
        hold_s=released_at - sent_at,
        statuses=dict(result["statuses"]),
        faults=result["faults"],
        times=tuple(
            Times(first - sent, last - sent, first - released_at)
            for sent, first, last in result["times"]
            if first is not None
        ),
        logged=len(entries),
        flags=count_flags(entries),
        ext_proc_errors=count_ext_proc_errors(entries),
        engine_errors=engine_errors(stack),
        in_flight_after=in_flight,
        seconds=time.monotonic() - started,
    )


def wait_held(prefills: list[Engine], clients: int) -> int:
    """Until the engines hold all of them, at most as long as they do; the most held at once."""
    most = 0
    deadline = time.monotonic() + HOLD_LIMIT_S
    while most < clients and time.monotonic() < deadline:
        most = max(most, sum(engine.state()["holding_now"] for engine in prefills))
        time.sleep(POLL_S)
    return most


def release(prefills: list[Engine]) -> float:
    """All let go at once, not one after another; returns when they were told."""
    now = time.monotonic()
    with ThreadPoolExecutor(len(prefills)) as pool:
        list(pool.map(lambda engine: engine.ask("hold", hold=False), prefills))
    return now


def settled(read: Callable[[], T], is_settled: Callable[[T], bool], deadline: float) -> T:
    """What `read` gives once it is settled, or when the deadline is over."""
    while True:
        value = read()
        if is_settled(value) or time.monotonic() > deadline:
            return value
        time.sleep(SETTLE_POLL_S)


def logged(stack: Stack) -> list[dict[str, Any]]:
    """The generator's requests in Envoy's access log (`up` asks for /health by itself)."""
    return [one for one in stack.access_log() if one["path"] == PATH]


def count_flags(entries: list[dict[str, Any]]) -> dict[str, int]:
    """Every response flag but none (`-`)."""
    flags = Counter(flag for one in entries for flag in str(one["flags"] or "-").split(","))
    del flags["-"]
    return dict(flags)


def count_ext_proc_errors(entries: list[dict[str, Any]]) -> dict[str, int]:
    """Response code details by which ext_proc itself ended a request."""
    details = (str(one["details"]) for one in entries)
    return dict(Counter(one for one in details if "ext_proc" in one))


def engine_errors(stack: Stack) -> dict[str, int]:
    """What the simulated engines found wrong with what reached them."""
    errors: Counter[str] = Counter()
    for engine in stack.engines:
        errors.update(engine.state()["errors"])
    return dict(errors)
