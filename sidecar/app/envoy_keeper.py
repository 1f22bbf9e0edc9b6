"""Keeps one Envoy beside the sidecar of `up`: adopts a living one, else starts it, and again if it
dies.

Envoy outlives us by design: a crash of the sidecar must not cost a running stream (design §2).
"""

import asyncio
import logging
from pathlib import Path
from time import monotonic
from typing import Any

from sidecar.edge import envoy_process
from sidecar.edge.envoy_process import EnvoyRecord
from sidecar.errors import StartError
from sidecar.xds.bootstrap import bootstrap_hash

log = logging.getLogger(__name__)

WATCH_S = 0.25
LIVE_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 10.0
"""for a living Envoy to say who it is: at peak load its admin may be slow, and ending it would cut
what it carries"""
IDLE_POLL_S = 0.5
BACKOFF_S = (0.1, 5.0)


class EnvoyKeeper:
    def __init__(
        self, binary: Path, bootstrap: dict[str, Any], run_dir: Path, concurrency: int
    ) -> None:
        self._binary = binary
        self._bootstrap = bootstrap
        self._run_dir = run_dir
        self._concurrency = concurrency
        self.record: EnvoyRecord | None = None
        self._is_adopted = False

    def __repr__(self) -> str:
        return f"<EnvoyKeeper pid={self.record.pid if self.record else None}>"

    async def adopt(self, drain_timeout_s: float) -> bool:
        """Take over a living Envoy of this run directory; False: there is none any more.

        One with another bootstrap is drained and ended first, one that does not answer is ended.
        Cancelled meanwhile, it is still ours to `stop`."""
        found = self.record = await asyncio.to_thread(envoy_process.living_envoy, self._run_dir)
        if found is None:
            return False
        if not await asyncio.to_thread(envoy_process.is_answering, found, ANSWER_TIMEOUT_S):
            log.warning("the living Envoy (pid %d) does not answer: ending it", found.pid)
        elif found.bootstrap_hash == bootstrap_hash(self._bootstrap):
            log.info("adopted the living Envoy, pid %d", found.pid)
            self._is_adopted = True
            return True
        else:
            log.info("the living Envoy (pid %d) has another bootstrap: draining it", found.pid)
            await asyncio.to_thread(envoy_process.drain_listeners, found)
            deadline = monotonic() + drain_timeout_s
            while monotonic() < deadline and not await asyncio.to_thread(
                envoy_process.wait_until_idle, found, IDLE_POLL_S
            ):
                pass
        await self.stop()
        return False

    def start(self) -> None:
        """Start it unless one was adopted. Raises StartError."""
        if self.record is None:
            self.record = envoy_process.start_envoy(
                self._binary, self._bootstrap, self._run_dir, self._concurrency
            )

    async def wait_until_live(self) -> None:
        """Raises StartError with the reason from Envoy's log.

        One that was adopted may die before it is seen alive; then another is started."""
        record = self.record
        assert record is not None
        try:
            await asyncio.to_thread(envoy_process.wait_until_live, record, LIVE_TIMEOUT_S)
        except StartError:
            if not self._is_adopted or envoy_process.is_running(record):
                raise
            log.warning("the adopted Envoy (pid %d) ended: starting another", record.pid)
            self.record, self._is_adopted = None, False
            self.start()
            await self.wait_until_live()

    async def keep(self) -> None:
        """Start it again whenever it has died, until cancelled."""
        pause = BACKOFF_S[0]
        while True:
            await asyncio.sleep(WATCH_S)
            if self.record is not None:
                if envoy_process.is_running(self.record):
                    continue
                log.error("Envoy (pid %d) ended; again in %.1f s", self.record.pid, pause)
            await asyncio.sleep(pause)
            try:
                self.record = None
                self.start()
                await self.wait_until_live()
                pause = BACKOFF_S[0]
            except (StartError, OSError) as error:
                log.error("Envoy cannot be started again: %s", error)
                pause = min(2 * pause, BACKOFF_S[1])

    def leave(self) -> None:
        """Let it go on without us: a start that fails must not cut what a living Envoy carries."""
        if self.record is not None and envoy_process.is_running(self.record):
            log.warning("Envoy, pid %d, goes on alone; `pd-sidecar down` ends it", self.record.pid)
        self.record = None

    async def stop(self) -> None:
        if self.record is not None:
            await asyncio.to_thread(envoy_process.stop_envoy, self.record, STOP_TIMEOUT_S)
            self.record = None
