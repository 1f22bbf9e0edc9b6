"""A worker process: ext_proc on its own socket, the prefill client, and the pick."""

import asyncio
import logging
import os
import signal
from collections.abc import Coroutine
from time import monotonic
from typing import Any

import msgspec

from sidecar.app import settings
from sidecar.app.ext_proc_server import ExtProcServer
from sidecar.app.transfer_keeper import TransferKeeper
from sidecar.config import Config
from sidecar.edge.kv_notifier import KvNotifier
from sidecar.edge.lifeline import Lifeline
from sidecar.edge.prefill_client import PrefillClient
from sidecar.edge.run_dir import RunDir
from sidecar.edge.shared_cursors import SharedCursors
from sidecar.edge.transfer_journal import TransferJournal
from sidecar.edge.worker_link import LinkClient
from sidecar.exchange.body_budget import BodyBudget
from sidecar.exchange.effects import StartPrefill
from sidecar.exchange.events import PrefillAnswered, PrefillFailed
from sidecar.exchange.machine import Exchange
from sidecar.exchange.records import Hello, Record
from sidecar.exchange.situation import survey
from sidecar.routing.instance import TransferMode
from sidecar.routing.policies import another_decode, pick, spare_decode
from sidecar.routing.pool import Pool
from sidecar.routing.slots import Demand, NoPlacement, Placement
from sidecar.routing.view import View

log = logging.getLogger(__name__)

CLOSE_GRACE_S = 0.5


class Worker:
    """What one ext_proc stream needs of its process (`ext_proc_server.Surroundings`)."""

    def __init__(self, index: int, config: Config, run_dir: RunDir) -> None:
        self._index = index
        self._limits = settings.limits(config)
        self._cursors = SharedCursors(run_dir.cursors)
        self._client = PrefillClient(config.tuning.upstream.connect_timeout_s)
        self._bodies = BodyBudget(settings.body_budget_bytes(config))
        self._has_view = asyncio.Event()
        self._set_view(View(number=0))
        self._journal = TransferJournal(run_dir.transfers(index))
        if index == 0:
            for path in run_dir.abandoned_transfers(settings.workers_of(config)):
                self._journal.take_over(path)
        self._notifier = KvNotifier() if config.engine.release_kv else None
        self.transfers = TransferKeeper(
            self._journal,
            self._notifier,
            self.note,
            config.engine.transfer_timeout_s,
            config.engine.defer_timeout_s,
        )
        self._server = ExtProcServer(self, config.ext_proc.server)
        self._socket = run_dir.worker_socket(index)
        self._link = LinkClient(
            run_dir.link_socket,
            on_view=self._on_view,
            hello=self._hello,
            unlocked_picks=lambda: self._cursors.unlocked_picks,
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Serve from the first view on, until `stop`."""
        link = asyncio.create_task(self._link.run())
        self.transfers.recover(monotonic())
        sweep = asyncio.create_task(self.transfers.sweep())
        try:
            # Without a view every request would be refused: better that Envoy asks another worker.
            await _first(self._has_view.wait(), stop.wait(), link)
            if not stop.is_set() and not link.done():
                await self._server.listen(self._socket)
                log.info("worker %d serves", self._index)
                await _first(stop.wait(), link)
            if link.done():
                link.result()  # never meant to end: better a new worker than one with an old view
        finally:
            await self._server.close(CLOSE_GRACE_S)
            await self.transfers.close()
            for task in (link, sweep):
                task.cancel()
            await asyncio.gather(link, sweep, return_exceptions=True)
            await self._client.close()
            if self._notifier is not None:
                self._notifier.close()
            self._journal.close()
            self._cursors.close()

    def _hello(self) -> Hello:
        return Hello(
            worker=self._index,
            pid=os.getpid(),
            open=self._server.open_records(),
            running_on=self._server.running_on(),
        )

    def _on_view(self, view: View) -> None:
        self._set_view(view)
        self.transfers.see(view)
        self._has_view.set()

    def _set_view(self, view: View) -> None:
        self._pool = Pool(view)
        self._situation = survey(view)

    def new_exchange(self) -> Exchange:
        return Exchange(
            os.urandom(16).hex(), self._index, self._situation, self._limits, self._bodies
        )

    def pick(self, demand: Demand) -> Placement | NoPlacement:
        with self._cursors.held():
            return pick(self._pool, demand, self._cursors)

    def confirm(self, placement: Placement, demand: Demand) -> Placement | NoPlacement:
        assert placement.decode is not None
        confirmed: Placement | NoPlacement = placement
        if not self._pool.is_placeable(placement.decode):
            if placement.mode is TransferMode.WRITE:  # no other one was told to prefill
                return NoPlacement("no_decode_instance")
            with self._cursors.held():
                confirmed = another_decode(self._pool, placement, demand, self._cursors)
        if isinstance(confirmed, NoPlacement):
            return confirmed
        spare = spare_decode(self._pool, confirmed, demand)
        return msgspec.structs.replace(confirmed, spare=spare)

    def note(self, record: Record) -> None:
        self._link.note(record)

    def prefill(self, leg: StartPrefill) -> asyncio.Future[PrefillAnswered | PrefillFailed]:
        return self._client.send(leg)


async def _first(*waits: Coroutine[Any, Any, object] | asyncio.Task[None]) -> None:
    """Until the first of them is over; the coroutines among the others are cancelled."""
    own = [asyncio.create_task(wait) for wait in waits if not isinstance(wait, asyncio.Task)]
    theirs = [wait for wait in waits if isinstance(wait, asyncio.Task)]
    await asyncio.wait([*own, *theirs], return_when=asyncio.FIRST_COMPLETED)
    for task in own:
        task.cancel()


async def run_worker(index: int, config: Config, run_dir: RunDir, lifeline_fd: int) -> None:
    """SIGTERM and the end of the lifeline: end at once."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    lifeline = Lifeline(lifeline_fd, stop.set)
    lifeline.start()
    try:
        await Worker(index, config, run_dir).run(stop)
    finally:
        lifeline.close()
