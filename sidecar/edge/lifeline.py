"""A child's end of the pipe to its supervisor: end of file ends the child, a byte a second says it
lives.

So nothing stale outlives its supervisor, however that died, and a child that is stopped or stuck is
found: a stopped process would still pass a TCP check.
"""

import asyncio
import os
from collections.abc import Callable

BEAT_S = 1.0


class Lifeline:
    """Start and close, once each. The descriptor stays open: its end is the process's own."""

    def __init__(self, fd: int, on_end: Callable[[], None]) -> None:
        self._fd = fd
        self._on_end = on_end
        self._task: asyncio.Task[None] | None = None
        os.set_blocking(fd, False)

    def start(self) -> None:
        """Needs the running loop."""
        asyncio.get_running_loop().add_reader(self._fd, self._readable)
        self._task = asyncio.create_task(self._beat())

    def close(self) -> None:
        if self._task is not None:
            asyncio.get_running_loop().remove_reader(self._fd)
            self._task.cancel()
            self._task = None

    def _readable(self) -> None:
        try:
            data = os.read(self._fd, 64)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        if not data:
            self.close()
            self._on_end()

    async def _beat(self) -> None:
        while True:
            try:
                os.write(self._fd, b".")
            except BlockingIOError:
                pass  # the supervisor itself is stopped
            except OSError:
                return  # it is gone; the reader sees the end
            await asyncio.sleep(BEAT_S)
