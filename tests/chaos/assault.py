"""Performs the faults of a plan, and undoes each in its time: what was killed is started again.

One thread. What undoes a fault waits in a heap; the harness calls `tick` often. A fault whose
target is not there yet (a child that is still being started) waits for it, so the order stays the
plan's.
"""

import heapq
import json
import os
import signal
import socket
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count

from tests.chaos.outages import Outages
from tests.chaos.plan import Fault
from tests.chaos.sim_engine import SimEngine
from tests.chaos.tally import Tally
from tests.e2e.stack import Stack, http, until

TARGET_LIMIT_S = 20.0
"""for a target to be there: a supervisor starts its children in 1 to 3 s on two loaded cores"""
EDGE_LIMIT_S = 25.0
"""for a killed Envoy to be back"""
END_LIMIT_S = 5.0
"""for an engine to end after SIGTERM"""


class Assault:
    """The faults of one run against one stack."""

    def __init__(
        self,
        plan: Sequence[Fault],
        stack: Stack,
        engines: Sequence[SimEngine],
        outages: Outages,
        tally: Tally,
        say: Callable[[str], None],
    ) -> None:
        self._plan = deque(plan)
        self._stack = stack
        self._engines = engines
        self._outages = outages
        self._tally = tally
        self._say = say
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._began = time.monotonic()
        self._waiting_since: float | None = None
        self._edge_down_since = 0.0
        self._old_envoy = 0
        self.is_up_wanted = True
        """False while the supervisor is away by our own doing"""
        self.done: Counter[str] = Counter()

    @property
    def is_over(self) -> bool:
        """No fault is left to do or to undo."""
        return not self._plan and not self._later and not self._outages.is_now

    def tick(self) -> None:
        """Do what is due."""
        now = time.monotonic()
        self._watch_up()
        self._watch_engines()
        self._watch_edge(now)
        while self._later and self._later[0][0] <= now:
            heapq.heappop(self._later)[2]()
        if self._plan and self._plan[0].at_s <= now - self._began:
            fault = self._plan[0]
            if self._perform(fault):
                self._plan.popleft()
                self._waiting_since = None
                self.done[fault.kind] += 1
            elif self._waiting_since is None:
                self._waiting_since = now
            elif now - self._waiting_since > TARGET_LIMIT_S:
                self._tally.violate(f"{fault}: its target was not there for {TARGET_LIMIT_S:g} s")
                self._plan.popleft()
                self._waiting_since = None

    def clear(self) -> None:
        """No engine is told to fail any more."""
        for engine in self._engines:
            url = f"{engine.url}/sim/faults"
            until(lambda url=url: http("DELETE", url)[0] == 200, f"{engine.name} answers")

    def _after(self, seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._later, (time.monotonic() + seconds, next(self._numbers), act))

    # --- faults

    def _perform(self, fault: Fault) -> bool:
        """Do it; False: the target is not there yet."""
        match fault.kind:
            case "worker killed":
                return self._kill_child("worker", fault)
            case "control killed":
                return self._kill_child("control", fault)
            case "supervisor killed":
                return self._kill_supervisor(fault)
            case "Envoy killed":
                return self._kill_envoy(fault)
        engine = self._engines[fault.target]
        if not engine.is_alive or engine.is_stopped:
            return False
        match fault.kind:
            case "engine killed":
                self._report(fault, engine.name, engine.pid)
                engine.send(signal.SIGKILL)
                self._after(fault.lasts_s, lambda: self._restart(engine))
            case "engine ended":
                self._report(fault, engine.name, engine.pid)
                engine.send(signal.SIGTERM)
                self._after(fault.lasts_s, lambda: self._restart(engine))
            case "engine stopped":
                self._report(fault, engine.name, engine.pid)
                engine.send(signal.SIGSTOP)
                self._after(fault.lasts_s, lambda: engine.send(signal.SIGCONT))
            case "engine told to fail" | "engine refuses":
                self._tell(engine, fault)
            case _:
                raise ValueError(fault.kind)
        return True

    def _report(self, fault: Fault, name: str, pid: int) -> None:
        lasts = f" for {fault.lasts_s:.1f} s" if fault.lasts_s else ""
        self._say(f"{fault.kind}: {name}, pid {pid}{lasts}")

    def _restart(self, engine: SimEngine) -> None:
        if not engine.reap(END_LIMIT_S):
            self._tally.violate(f"{engine.name} did not end within {END_LIMIT_S:g} s of SIGTERM")
            engine.send(signal.SIGKILL)
            engine.reap(END_LIMIT_S)
        engine.start()

    def _tell(self, engine: SimEngine, fault: Fault) -> None:
        """An engine that does not answer (it has just been started) misses it."""
        status, body = http("POST", f"{engine.url}/sim/faults", fault.control, timeout_s=1.0)
        if status not in (0, 200):
            raise RuntimeError(f"/sim/faults {fault.control}: {status} {body!r}")
        self._say(f"{fault.kind}: {engine.name} {json.dumps(fault.control)}: {status}")

    def _kill_child(self, role: str, fault: Fault) -> bool:
        found = set(self._stack.child_pids(role))
        if role == "worker":
            found &= set(self._stack.child_pids(f"--index={fault.target}"))
        if len(found) != 1:
            return False
        (pid,) = found
        self._report(fault, f"{role} {fault.target}", pid)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        return True

    def _kill_supervisor(self, fault: Fault) -> bool:
        process = self._stack.process
        if process is None or process.poll() is not None or not self._stack.child_pids():
            return False
        self._report(fault, "with all its children", process.pid)
        self.is_up_wanted = False
        self._stack.kill_sidecar()
        self._after(fault.lasts_s, self._start_up)
        return True

    def _start_up(self) -> None:
        self._stack.spawn()
        self.is_up_wanted = True

    def _kill_envoy(self, fault: Fault) -> bool:
        try:
            pid = self._stack.envoy_pid()
        except (OSError, ValueError):
            return False
        if not self._stack.is_alive(pid):
            return False
        self._report(fault, "", pid)
        self._edge_down_since = time.monotonic()
        self._old_envoy = pid
        self._outages.begin(self._edge_down_since)
        os.kill(pid, signal.SIGKILL)
        return True

    # --- what comes back by itself

    def _watch_up(self) -> None:
        """`up` never ends by itself."""
        process = self._stack.process
        if self.is_up_wanted and process is not None and process.poll() is not None:
            self._tally.violate(f"`up` (pid {process.pid}) ended by itself: {process.returncode}")
            self._stack.spawn()

    def _watch_engines(self) -> None:
        """No engine ends by itself either: a real one would have been killed by what it got."""
        for engine in self._engines:
            if engine.is_wanted and not engine.is_alive:
                self._tally.violate(f"{engine.name} (life {engine.life}) ended by itself")
                engine.start()

    def _watch_edge(self, now: float) -> None:
        """The end of an outage: a new Envoy accepts at the edge."""
        if not self._outages.is_now:
            return
        if now - self._edge_down_since > EDGE_LIMIT_S:
            self._tally.violate(f"Envoy was not back {EDGE_LIMIT_S:g} s after its death")
            self._outages.end(now)
            return
        host, _, port = self._stack.url.removeprefix("http://").rpartition(":")
        try:
            if self._stack.envoy_pid() == self._old_envoy:
                return
            socket.create_connection((host, int(port)), 0.2).close()
        except (OSError, ValueError):
            return
        self._outages.end(time.monotonic())
