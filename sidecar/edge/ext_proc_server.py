"""The ext_proc server of one worker: drives one `Exchange` for each stream.

Raw bytes in and out (no generated servicer: one copy less for each message). It performs effects
and feeds events; it decides nothing. Invariants: whatever way a stream ends, the notes that give
slots back are written; a prefill leg that outlives its stream is waited for by the server.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from time import monotonic, perf_counter
from typing import Protocol

import grpc
import grpc.aio
import msgspec

from sidecar.errors import StartError
from sidecar.exchange.effects import (
    ClosePrefill,
    Confirm,
    Effect,
    EndTransfer,
    FailTransfer,
    Note,
    Place,
    Send,
    StartPrefill,
)
from sidecar.exchange.events import Broke, ClientLeft, Event, PrefillAnswered, PrefillFailed
from sidecar.exchange.machine import Exchange
from sidecar.exchange.phase import Phase
from sidecar.exchange.records import Placed, Record, Replied
from sidecar.exchange.transfer import Transfer
from sidecar.routing.slots import Demand, NoPlacement, Placement
from sidecar.wire import ext_proc

log = logging.getLogger(__name__)

EOF = grpc.aio.EOF  # type: ignore[attr-defined]  # the stubs lack it
SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
MANY = 1_000_000
"""gRPC's own defaults cancel calls at random from 1000 pending on; a burst must only wait"""

CLOSE_S, CLOSE_POLL_S = 1.0, 0.01

OPTIONS = [
    ("grpc.server.max_pending_requests", MANY),
    ("grpc.server.max_pending_requests_hard_limit", MANY),
    ("grpc.max_concurrent_streams", MANY),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.so_reuseport", 0),
]


class Transfers(Protocol):
    """Who keeps what decode engines wait for."""

    def open(self, transfer: Transfer) -> None: ...

    def end(self, transfer_id: str, *, is_answered: bool) -> None: ...

    def fail(self, transfer_id: str, *, is_certain: bool) -> None: ...


class Surroundings(Protocol):
    """What a stream needs of its worker."""

    @property
    def transfers(self) -> Transfers: ...

    def new_exchange(self) -> Exchange: ...

    def pick(self, demand: Demand) -> Placement | NoPlacement: ...

    def confirm(self, placement: Placement, demand: Demand) -> Placement | NoPlacement: ...

    def note(self, record: Record) -> None: ...

    async def prefill(self, leg: StartPrefill) -> PrefillAnswered | PrefillFailed: ...


class ExtProcServer:
    def __init__(self, surroundings: Surroundings) -> None:
        self._surroundings = surroundings
        self._server = grpc.aio.server(options=OPTIONS)
        self._streams: set[_Stream] = set()
        self._running_on: dict[asyncio.Task[None], _Stream] = {}
        handler = grpc.stream_stream_rpc_method_handler(self._process)
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, {"Process": handler}),)
        )

    async def listen(self, path: Path) -> None:
        """Serve on a unix socket; whatever lies at `path` is replaced. The umask gives its mode.

        Raises StartError.
        """
        try:
            path.unlink(missing_ok=True)  # noqa: ASYNC240  a local file, once
            self._server.add_insecure_port(f"unix:{path}")
        except (OSError, RuntimeError) as error:  # grpc's own is a bare RuntimeError
            raise StartError(f"cannot listen on {path}: {error}") from None
        await self._server.start()

    async def close(self, grace_s: float) -> None:
        await self._server.stop(grace_s)
        deadline = monotonic() + CLOSE_S
        # A stream whose call is over may hand its prefill leg over a moment later.
        while (self._streams or self._running_on) and monotonic() < deadline:
            for task in self._running_on:
                task.cancel()
            await asyncio.sleep(CLOSE_POLL_S)

    def open_records(self) -> tuple[Placed, ...]:
        """What the running streams hold, for a control process that starts anew."""
        return _records(self._streams)

    def running_on(self) -> tuple[Placed, ...]:
        """What the prefill legs hold that outlived their streams."""
        return _records(self._running_on.values())

    async def _process(
        self, _requests: AsyncIterator[bytes], context: "grpc.aio.ServicerContext[bytes, bytes]"
    ) -> None:
        stream = _Stream(self._surroundings, context)
        self._streams.add(stream)
        try:
            await stream.run()
        finally:
            self._streams.discard(stream)
            if stream.exchange.phase is Phase.PREFILL_ALONE:
                task = asyncio.create_task(stream.run_on())
                self._running_on[task] = stream
                task.add_done_callback(self._running_on.pop)


def _records(streams: "Iterable[_Stream]") -> tuple[Placed, ...]:
    records = (stream.exchange.open_record for stream in streams)
    return tuple(record for record in records if record is not None)


class _Stream:
    """One ext_proc stream, that is one exchange."""

    def __init__(
        self, surroundings: Surroundings, context: "grpc.aio.ServicerContext[bytes, bytes]"
    ) -> None:
        self._here = surroundings
        self._context = context
        self.exchange = surroundings.new_exchange()
        self._prefill: asyncio.Task[PrefillAnswered | PrefillFailed] | None = None
        self._read: asyncio.Task[ext_proc.Message | ClientLeft] | None = None
        self._busy_s = 0.0
        self._woke: float | None = None
        """since when it works; None: it waits"""
        self._prefill_over_at: float | None = None

    async def run(self) -> None:
        try:
            while self.exchange.phase not in (Phase.DONE, Phase.PREFILL_ALONE):
                await self._handle(await self._next_event())
        except Exception:  # a bug, whatever it is, is the client's 500 and costs no other stream
            log.exception("exchange %s failed", self.exchange.exchange_id)
            await self._handle(Broke())
        finally:
            left = ClientLeft(prefill=self._prefill_result())
            self._settle(self.exchange.handle(left, monotonic()))
            if self._read is not None:
                self._read.cancel()
            if self._prefill is not None and self.exchange.phase is Phase.DONE:
                self._prefill.cancel()

    async def run_on(self) -> None:
        """Wait for the prefill leg, for decode's sake. Bounded: the leg has its time limit."""
        event: Event = Broke()
        try:
            if self._prefill is not None:
                event = await self._take_prefill()
        except Exception:  # a bug: `event` says that nobody knows how the leg ended
            log.exception("prefill of exchange %s failed", self.exchange.exchange_id)
        finally:
            self._settle(self.exchange.handle(event, monotonic()))

    def _prefill_result(self) -> PrefillAnswered | PrefillFailed | None:
        """What the prefill leg gave, if it has ended and nobody took it."""
        task = self._prefill
        if task is None or not task.done() or task.cancelled() or task.exception() is not None:
            return None
        return task.result()

    async def _handle(self, event: Event) -> None:
        self._woke = perf_counter()
        await self._perform(self.exchange.handle(event, monotonic()))
        self._busy_s += perf_counter() - self._woke
        self._woke = None

    async def _next_event(self) -> Event:
        """Whatever comes first: prefill's end, or Envoy's next message."""
        phase = self.exchange.phase
        if self._prefill is None:
            return await self._read_event() if self._read is None else await self._take_read()
        # READ: Envoy has nothing to say until we reply. If the client leaves it resets the stream
        # (tried: 1.40, within 25 ms), which cancels this task and with it the leg it waits for.
        if phase is Phase.PREFILL:
            return await self._take_prefill()
        if phase is not Phase.HELD and self._read is None:
            self._read = asyncio.create_task(self._read_event())
        waiting = {t for t in (self._prefill, self._read) if t is not None}
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if self._read in done:
            return await self._take_read()
        return await self._take_prefill()

    async def _read_event(self) -> ext_proc.Message | ClientLeft:
        data = await self._context.read()
        return ClientLeft() if data is EOF else ext_proc.decode(data)

    async def _take_read(self) -> Event:
        assert self._read is not None
        event = await self._read
        self._read = None
        return event

    async def _take_prefill(self) -> Event:
        assert self._prefill is not None
        event = await self._prefill
        self._prefill = None
        self._prefill_over_at = perf_counter()
        return event

    async def _perform(self, effects: Iterable[Effect]) -> None:
        """In order; if the stream ends meanwhile, what remains is settled all the same."""
        queue = list(effects)
        try:
            while queue:
                queue[:1] = await self._perform_one(queue[0])
        except BaseException:
            self._settle(queue[1:])
            raise

    async def _perform_one(self, effect: Effect) -> list[Effect]:
        """Do it; returns the effects of the event that it gave, if it gave one."""
        if isinstance(effect, Send):
            await self._send(effect.reply)
        elif isinstance(effect, StartPrefill):
            if effect.transfer is not None:
                self._here.transfers.open(effect.transfer)
            self._prefill = asyncio.create_task(self._here.prefill(effect))
        elif isinstance(effect, Place):
            started = perf_counter()
            event = self._here.pick(effect.demand)
            return [
                _timed(e, perf_counter() - started)
                for e in self.exchange.handle(event, monotonic())
            ]
        elif isinstance(effect, Confirm):
            return self.exchange.handle(
                self._here.confirm(effect.placement, effect.demand), monotonic()
            )
        else:
            self._settle_one(effect)
        return []

    def _settle(self, effects: Iterable[Effect]) -> None:
        """What must happen even when nobody listens any more."""
        for effect in effects:
            self._settle_one(effect)

    def _settle_one(self, effect: Effect) -> None:
        if isinstance(effect, Note):
            self._note(effect.record)
        elif isinstance(effect, EndTransfer):
            self._here.transfers.end(effect.transfer_id, is_answered=effect.is_answered)
        elif isinstance(effect, FailTransfer):
            self._here.transfers.fail(effect.transfer_id, is_certain=effect.is_certain)
        elif isinstance(effect, ClosePrefill) and self._prefill is not None:
            self._prefill.cancel()
            self._prefill = None

    async def _send(self, reply: ext_proc.Reply) -> None:
        await self._context.write(ext_proc.encode(reply))

    def _note(self, record: Record) -> None:
        if isinstance(record, Replied):
            now = perf_counter()
            over = self._prefill_over_at
            record = msgspec.structs.replace(
                record,
                overhead_s=self._busy_s + (0.0 if self._woke is None else now - self._woke),
                gap_s=now - over if over is not None and record.is_handed_over else None,
            )
        self._here.note(record)


def _timed(effect: Effect, seconds: float) -> Effect:
    """The note of a placement, with how long the pick took."""
    if isinstance(effect, Note) and isinstance(effect.record, Placed):
        return Note(msgspec.structs.replace(effect.record, placement_s=seconds))
    return effect
