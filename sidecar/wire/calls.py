"""gRPC calls as their server sees them, whatever carries them.

Two carriers implement `Carrier`: `http2_server` and `grpcio_server`. Both are held to the same
tests.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol


class Call(Protocol):
    """One bidirectional call, towards its client."""

    def send(self, first: bytes, *others: bytes) -> None:
        """Queue a message, given in parts of which the first is small. After `end`, or when the
        client is gone, it is dropped."""

    def end(self) -> None:
        """End the call with status OK, behind what was sent."""


class Handler(Protocol):
    """One call, towards us. Nothing is called after `on_closed`, which comes once, unless we ended
    the call."""

    def on_message(self, message: bytes) -> None: ...

    def on_closed(self) -> None:
        """The client reset the call, closed its half, or its connection is gone."""


Accept = Callable[[Call], Handler]


class Carrier(Protocol):
    """A server for one method of one service."""

    async def listen(self, path: Path) -> None:
        """Serve on a unix socket; whatever lies at `path` is replaced. The umask gives its mode.

        Raises StartError.
        """

    async def close(self, grace_s: float) -> None:
        """Take no more calls; those that run may end within `grace_s`, the others are closed."""
