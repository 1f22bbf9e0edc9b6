"""One connection of the HTTP/2 carrier without a socket: it is fed bytes, cut where the test wants,
and what it does is kept as events."""

import asyncio
from collections.abc import Iterable

from sidecar.edge.http2_server import Connection, Http2Server
from sidecar.wire.calls import Call, Handler

Event = tuple[str, int, bytes]
"""what the handler of which call was told, or did"""


class Sink(asyncio.Transport):
    """Takes all that is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.is_closed = False

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        for data in list_of_data:
            self.written += data

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...


class _Handler:
    """Sends each message back; one that begins with `e` ends the call."""

    def __init__(self, fed: "Fed", number: int, call: Call) -> None:
        self._fed, self._number, self._call = fed, number, call

    def on_message(self, message: bytes) -> None:
        self._fed.events.append(("message", self._number, message))
        self._call.send(message)
        if message.startswith(b"e"):
            self._fed.events.append(("ended", self._number, b""))
            self._call.end()

    def on_closed(self) -> None:
        self._fed.events.append(("closed", self._number, b""))


class Fed:
    """To be made where a loop runs."""

    def __init__(self, server: Http2Server | None = None) -> None:
        self.events: list[Event] = []
        self.begun = 0
        self.server = server or Http2Server(self._accept)
        self.connection = Connection(self.server)
        self.sink = Sink()
        self.connection.connection_made(self.sink)

    def _accept(self, call: Call) -> Handler:
        self.begun += 1
        return _Handler(self, self.begun, call)

    async def feed(self, pieces: Iterable[bytes]) -> None:
        """As a transport does: nothing after it was closed, and the loop turns in between."""
        for piece in pieces:
            if piece and not self.sink.is_closed:
                self.connection.data_received(piece)
                await asyncio.sleep(0)

    def lose(self) -> None:
        self.sink.is_closed = True
        self.connection.connection_lost(None)

    def of(self, number: int) -> list[str]:
        """What one call came to."""
        return [what for what, call, _ in self.events if call == number]


async def outcome(pieces: Iterable[bytes]) -> tuple[list[Event], bytes, bool]:
    """Events, what was written, and whether the connection was closed by us; then it is lost."""
    fed = Fed()
    await fed.feed(pieces)
    events, written, is_closed = list(fed.events), bytes(fed.sink.written), fed.sink.is_closed
    fed.lose()
    assert not fed.connection.calls
    assert not fed.connection.blocked
    assert not fed.server.connections
    for number in range(1, fed.begun + 1):
        ends = [what for what in fed.of(number) if what != "message"]
        assert len(ends) == 1, f"call {number} ended as {ends}"
        assert fed.of(number)[-1] != "message", f"call {number} is told something after its end"
    return events, written, is_closed
