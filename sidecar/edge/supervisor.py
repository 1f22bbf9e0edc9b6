"""The small parent: starts children with exec, restarts each with back-off, ends those that fall
silent.

Imports neither grpc nor zmq, so that it stays small and cannot be hurt by them. Holds one socket
pair to each child: its end of file ends the child, a child's silence ends it too.
"""

import asyncio
import contextlib
import logging
import signal
import socket
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

log = logging.getLogger(__name__)

SILENCE_S = 5.0
TICK_S = 0.5
"""Silence is counted in these: while we are stopped ourselves (Ctrl-Z, a container that is paused)
nothing is counted, and the children are heard first when we go on."""
START_S = 30.0
"""a child may be silent for so long before its first beat (imports on a loaded machine)"""
BACKOFF_S = (0.05, 5.0)
CANNOT_START = 127
"""the exit code, as a shell has it, of a command that could not be executed"""
STEADY_S = 10.0
"""a child that lived so long starts again without delay"""


@dataclass(frozen=True)
class ChildSpec:
    """One child. `command` gets the number of the file descriptor of its lifeline."""

    name: str
    command: Callable[[int], Sequence[str]]
    beats: bool = True
    """says that it lives, and is killed when it falls silent"""
    restarts: bool = True
    silence_s: float = SILENCE_S
    start_s: float = START_S
    output: Path | None = None
    """where its stdout and stderr go, appended; None: ours"""


class Child:
    """One child process and its successors."""

    def __init__(self, spec: ChildSpec) -> None:
        self.spec = spec
        self.process: asyncio.subprocess.Process | None = None
        self.exits = 0
        """of its own accord"""
        self._stop = asyncio.Event()
        self._line: socket.socket | None = None
        self._pause = BACKOFF_S[0]

    def __repr__(self) -> str:
        pid = self.process.pid if self.process else None
        return f"<Child {self.spec.name} pid={pid} exits={self.exits}>"

    async def keep(self) -> int:
        """Run it, and again while it may; returns the last exit code once it is over for good."""
        while True:
            started = monotonic()
            code = await self._run_once()
            if self._stop.is_set() or not self.spec.restarts:
                return code
            self.exits += 1
            if monotonic() - started > STEADY_S:
                self._pause = BACKOFF_S[0]
            log.warning("%s ended (%s); again in %.2f s", self.spec.name, _words(code), self._pause)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pause):
                    await self._stop.wait()
                    return code
            self._pause = min(2 * self._pause, BACKOFF_S[1])

    async def _run_once(self) -> int:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        watch = None
        try:
            self.process = await self._spawn(theirs)
            self._line = ours
            if self._stop.is_set():  # asked while it was being started
                self.let_go()
            if self.spec.beats:
                watch = asyncio.create_task(self._watch(ours))
            return await self.process.wait()
        except OSError as error:
            log.error("%s cannot be started: %s", self.spec.name, error)
            return CANNOT_START
        finally:
            self._line = None
            if watch is not None:
                watch.cancel()
                await asyncio.gather(watch, return_exceptions=True)
            ours.close()

    async def _spawn(self, line: socket.socket) -> asyncio.subprocess.Process:
        """Start it with its end of the lifeline, of which we keep no copy."""
        path = self.spec.output
        with line, contextlib.nullcontext() if path is None else path.open("ab") as output:
            return await asyncio.create_subprocess_exec(
                *self.spec.command(line.fileno()),
                pass_fds=(line.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # a Ctrl-C on the terminal is the supervisor's to handle
            )

    async def _watch(self, line: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        patience, silent_s = self.spec.start_s, 0.0
        while True:
            tick_s = min(TICK_S, patience)
            try:
                async with asyncio.timeout(tick_s):
                    data = await loop.sock_recv(line, 4096)
            except TimeoutError:
                silent_s += tick_s
                if silent_s < patience:
                    continue
                log.error("%s has been silent for %.0f s: killed", self.spec.name, patience)
                self.send(signal.SIGKILL)
                return
            except ConnectionError:
                return
            if not data:
                return
            patience, silent_s = self.spec.silence_s, 0.0

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if it lives."""
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(number)

    def ask_to_end(self) -> None:
        """SIGTERM, and no successor."""
        self._stop.set()
        self.send(signal.SIGTERM)

    def let_go(self) -> None:
        """End of file on its lifeline: it ends at once, and has no successor."""
        self._stop.set()
        if self._line is not None:
            with contextlib.suppress(OSError):
                self._line.shutdown(socket.SHUT_WR)


def _words(code: int) -> str:
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}"


class Supervisor:
    """All children of one `up` or `serve`."""

    def __init__(self, specs: Sequence[ChildSpec]) -> None:
        self.children = {spec.name: Child(spec) for spec in specs}
        self._tasks: dict[str, asyncio.Task[int]] = {}

    def __repr__(self) -> str:
        return f"<Supervisor {list(self.children.values())}>"

    def start(self) -> None:
        """Start all; needs the running loop."""
        for name, child in self.children.items():
            self._tasks[name] = asyncio.create_task(child.keep(), name=f"keep {name}")

    def renew(self) -> None:
        """End every child that comes back of itself: its successor finds things as they are now."""
        for child in self.children.values():
            if child.spec.restarts:
                child.send(signal.SIGKILL)

    async def stop_one(self, name: str, timeout_s: float) -> bool:
        """Ask a child to end (SIGTERM); False: it did not within the limit."""
        self.children[name].ask_to_end()
        done, _ = await asyncio.wait([self._tasks[name]], timeout=timeout_s)
        return bool(done)

    async def close(self, timeout_s: float = 3.0) -> None:
        """End every child: end of file on its lifeline, and SIGKILL for what is left after the
        limit."""
        for child in self.children.values():
            child.let_go()
        tasks = [task for task in self._tasks.values() if not task.done()]
        if not tasks:
            return
        _, left = await asyncio.wait(tasks, timeout=timeout_s)
        for child in self.children.values():
            child.send(signal.SIGKILL)
        if left:
            await asyncio.wait(left, timeout=timeout_s)
