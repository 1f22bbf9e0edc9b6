"""The link between control and workers: pool views one way, batches of records the other.

A unix socket with length-prefixed frames (4 bytes, big endian). The control process listens,
workers connect and re-connect. While control is away a worker keeps its last view and a bounded
number of records. Knows nothing of what a view or a record means.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from pathlib import Path

import msgspec

from sidecar.errors import RemoteError, StartError
from sidecar.exchange.records import (
    Batch,
    FromWorker,
    Hello,
    Record,
    decode_from_worker,
    decode_view,
    encode,
)
from sidecar.routing.view import View

log = logging.getLogger(__name__)

BATCH_S = 0.05
QUEUE_MAX = 200_000
"""records kept while control is away: minutes of a full load, some tens of MB"""
FRAME_MAX = 256 << 20
BACKOFF_S = (0.05, 0.5)


async def _read_frame(reader: asyncio.StreamReader) -> bytes:
    """The next frame. Raises EOFError when the other end is gone, RemoteError on nonsense."""
    size = int.from_bytes(await reader.readexactly(4), "big")
    if size > FRAME_MAX:
        raise RemoteError(f"a frame of {size} bytes")
    return await reader.readexactly(size)


def _write_frame(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(len(data).to_bytes(4, "big") + data)


class LinkServer:
    """Control's end."""

    def __init__(
        self,
        *,
        on_message: Callable[[int, FromWorker], None],
        on_lost: Callable[[int], None],
    ) -> None:
        self._on_message = on_message
        self._on_lost = on_lost
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._view: bytes | None = None
        self._is_closing = False

    @property
    def workers(self) -> int:
        """Workers connected now."""
        return len(self._writers)

    async def listen(self, path: Path) -> None:
        """Listen on a unix socket; what lies at `path` is replaced. The umask gives its mode.

        Raises StartError.
        """
        try:
            path.unlink(missing_ok=True)  # noqa: ASYNC240  a local file, once
            self._server = await asyncio.start_unix_server(self._serve, path=str(path))
        except OSError as error:
            raise StartError(f"cannot listen on {path}: {error.strerror or error}") from None

    def publish(self, view: View) -> None:
        """Send a view to every worker, and to each that connects later."""
        self._view = encode(view)
        for writer in self._writers.values():
            _write_frame(writer, self._view)

    async def close(self) -> None:
        """No callback comes after this."""
        self._is_closing = True
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._converse(reader, writer)
        except (EOFError, ConnectionError, asyncio.CancelledError):
            pass  # the worker ended, or we do
        except (RemoteError, msgspec.MsgspecError) as error:
            log.error("a worker's link is closed: %s", error)
        finally:
            self._tasks.discard(task)
            self._lose(writer)
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hello = decode_from_worker(await _read_frame(reader))
        if not isinstance(hello, Hello):
            raise RemoteError("a worker's first frame must be Hello")
        before = self._writers.get(hello.worker)
        if before is not None:  # it came again before the end of its old link was seen
            self._lose(before)
            before.close()
        self._writers[hello.worker] = writer
        self._take(hello.worker, hello)
        if self._view is not None:
            _write_frame(writer, self._view)
        while True:
            self._take(hello.worker, decode_from_worker(await _read_frame(reader)))

    def _take(self, worker: int, message: FromWorker) -> None:
        try:
            self._on_message(worker, message)
        except Exception:  # one bad record must not cost the link, and with it all others
            log.exception("a message of worker %d", worker)

    def _lose(self, writer: asyncio.StreamWriter) -> None:
        """Tell of the worker whose link this is, if it is the worker's present one."""
        for worker in [w for w, present in self._writers.items() if present is writer]:
            del self._writers[worker]
            if not self._is_closing:
                self._on_lost(worker)


class LinkClient:
    """A worker's end."""

    def __init__(
        self,
        path: Path,
        *,
        on_view: Callable[[View], None],
        hello: Callable[[], Hello],
        unlocked_picks: Callable[[], int],
    ) -> None:
        self._path = path
        self._on_view = on_view
        self._hello = hello
        self._unlocked_picks = unlocked_picks
        self._queue: deque[Record] = deque()
        self._dropped = 0
        self._unlocked_told = 0
        self._views = 0
        """heard so far"""
        self._is_draining = False
        """by the last view: then control's end is no surprise"""

    def note(self, record: Record) -> None:
        """Queue a record; it leaves within 50 ms while control lives."""
        if len(self._queue) >= QUEUE_MAX:
            self._queue.popleft()
            self._dropped += 1
        self._queue.append(record)

    async def run(self) -> None:
        """Connect, and connect again, until cancelled."""
        pause = BACKOFF_S[0]
        while True:
            try:
                reader, writer = await asyncio.open_unix_connection(str(self._path))
            except OSError:
                pass
            else:
                if await self._session(reader, writer):
                    pause = BACKOFF_S[0]
            await asyncio.sleep(pause)
            pause = min(2 * pause, BACKOFF_S[1])

    async def _session(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One connection, until it breaks; whether a view came over it."""
        # What is open now is told whole; its queued records come after it and are idempotent.
        _write_frame(writer, encode(self._hello()))
        halves = [asyncio.create_task(self._flush(writer)), asyncio.create_task(self._read(reader))]
        views = self._views
        try:
            await asyncio.wait(halves, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for half in halves:
                half.cancel()
            ends = await asyncio.gather(*halves, return_exceptions=True)
            writer.close()
        for end in ends:
            if isinstance(end, Exception) and not isinstance(end, EOFError | ConnectionError):
                log.error("the link to the control process is closed", exc_info=end)
        if not self._is_draining:
            log.warning("the control process is away; serving its last view")
        return self._views > views

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while True:
            view = decode_view(await _read_frame(reader))
            self._views += 1
            self._is_draining = view.is_draining
            self._on_view(view)

    async def _flush(self, writer: asyncio.StreamWriter) -> None:
        while True:
            await asyncio.sleep(BATCH_S)
            if self._queue or self._dropped or self._unlocked_picks() != self._unlocked_told:
                unlocked = self._unlocked_picks()
                batch = Batch(
                    records=tuple(self._queue),
                    dropped=self._dropped,
                    unlocked_picks=unlocked - self._unlocked_told,
                )
                self._queue.clear()
                self._dropped, self._unlocked_told = 0, unlocked
                _write_frame(writer, encode(batch))
                await writer.drain()
