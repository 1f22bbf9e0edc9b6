"""One simulated instance as a process: takes its ports, lives, dies, lives again, ends.

A life that dies is followed by another on the same ports, in the same process.
"""

import asyncio
import json
import os
import resource
import signal
from collections.abc import Callable
from contextlib import suppress

import uvloop

from sidecar.sim.life import Life, has_ended
from sidecar.sim.options import SimOptions
from sidecar.sim.ports import Ports


def run_engine(options: SimOptions, lifeline_fd: int | None) -> None:
    """Run one instance until SIGTERM, SIGINT or the lifeline's end; raises OptionError."""
    _raise_open_files()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_Engine(options).run(lifeline_fd))


class _Engine:
    """The lives of one instance, one after the other."""

    def __init__(self, options: SimOptions) -> None:
        self._options = options
        self._ports = Ports(options)
        self._stop = asyncio.Event()
        self._life: Life | None = None

    async def run(self, lifeline_fd: int | None) -> None:
        """Live until the end."""
        _watch_for_end(self._end, lifeline_fd)
        number = 0
        while not self._stop.is_set():
            number += 1
            self._life = Life(self._options, self._ports, number)
            down_s = await self._life.run(self._print_ready if number == 1 else _say_nothing)
            if down_s is None or self._stop.is_set():
                return
            await self._ports.retake()
            await has_ended(self._stop, down_s)

    def _end(self) -> None:
        self._stop.set()
        if self._life is not None:
            self._life.stop()

    def _print_ready(self) -> None:
        ready = {
            "ready": True,
            "role": self._options.role,
            "http": str(self._ports.http_address),
            "handshake_port": self._ports.handshake_port,
            "notify_port": self._ports.notify_port,
            "pid": os.getpid(),
        }
        with suppress(OSError):  # nobody reads: the engine serves all the same
            print(json.dumps(ready), flush=True)


def _say_nothing() -> None:
    """A later life announces itself by its heartbeat alone."""


def _watch_for_end(on_end: Callable[[], None], lifeline_fd: int | None) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_end)
    if lifeline_fd is None:
        return

    def read() -> None:
        try:
            gone = not os.read(lifeline_fd, 4096)
        except BlockingIOError:
            return
        except OSError:
            gone = True
        if gone:
            loop.remove_reader(lifeline_fd)
            on_end()

    loop.add_reader(lifeline_fd, read)


def _raise_open_files() -> None:
    """Thousands of requests are as many sockets: soft limit to hard."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # "unlimited" may be above what the kernel takes
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
