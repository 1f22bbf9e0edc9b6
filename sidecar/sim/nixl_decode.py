"""NIXL's decode side: reads a request's blocks from the prefill rank that the leg names.

Invariant: a read that has begun goes on without its client, as vLLM's does, so that prefill's
blocks are freed. A leg that lacks keys waits for ever, and keeps its blocks when its client leaves.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Coroutine, Mapping
from typing import Any

from sidecar.sim.api_error import ApiError
from sidecar.sim.core import Core
from sidecar.sim.messages import Beat, Freed, Read
from sidecar.sim.model import block_contents
from sidecar.sim.model_request import ModelRequest
from sidecar.sim.nixl_params import NixlParams, first_group, is_of_moriio, read_nixl_params
from sidecar.sim.nixl_peers import UNREACHABLE, NixlPeers, PeerError
from sidecar.sim.nixl_prefill import ENGINE_DEAD

BEATS_IN_A_LEASE = 6  # nixl/base_scheduler.py, `_heartbeat_interval`


class NixlDecode:
    """The decode legs of one engine, all its ranks."""

    def __init__(self, core: Core, compatibility: str) -> None:
        self._core = core
        self._peers = NixlPeers(core.links, compatibility)
        self._tasks: set[asyncio.Task[Any]] = set()
        # Requests whose blocks heartbeats keep, by prefill engine.
        self._wanted: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._addresses: dict[str, tuple[Any, Any]] = {}
        self._is_beating = False
        self.leaked_transfers = 0
        self.leaked_blocks: Counter[int] = Counter()
        """By rank: nothing will ever free them."""
        self.abandoned_blocks: Counter[int] = Counter()
        """By rank: their client has left, and they are being written to."""
        core.on_death.append(self._wake)
        self._death = asyncio.Event()

    async def obtain(self, request: ModelRequest, rank: int) -> tuple[bytes, ...]:
        """Wait for a turn, then read; raises ApiError or EngineDead."""
        core, traffic = self._core, self._core.traffic[rank]
        given = request.body["kv_transfer_params"]
        params = read_nixl_params(given)
        if is_of_moriio(given):
            core.counters.errors["moriio_params"] += 1
        self._want(params)
        core.waiting += 1
        try:
            with traffic.wait():
                try:
                    await core.gate.wait()
                except asyncio.CancelledError:
                    self.free(given)
                    raise
                core.check_alive()
                traffic.admit(request.prompt_tokens, request.prompt_tokens)
                return await self._load(request, params, rank)
        finally:
            core.waiting -= 1
            self._forget(params)

    def free(self, given: Mapping[str, Any]) -> None:
        """Tell prefill that nobody will read the blocks.

        vLLM makes a request of it that ends at once, and then looks all keys up: without one of
        them its scheduler raises.
        """
        if self._core.is_dead:
            return
        params = read_nixl_params(given)
        if not params.has_required_keys or "remote_block_ids" not in given:
            self._core.die("nixl_missing_keys")
            return
        self._spawn(self._tell(params))

    def close(self) -> None:
        """The life ends."""
        self._peers.close()
        for task in self._tasks:
            task.cancel()

    async def _load(
        self, request: ModelRequest, params: NixlParams, rank: int
    ) -> tuple[bytes, ...]:
        own = len(block_contents(request.prompts[0]))
        if not params.block_ids:
            # Tokens were promised, and there is no block to read them from: an assertion.
            raise self._core.die("nixl_no_blocks")
        if not params.has_required_keys:
            self._core.counters.errors["nixl_missing_keys"] += 1
            await self._wait_for_ever(rank, own)
        reading = self._spawn(self._read(params, own))
        try:
            return await asyncio.shield(reading)
        except asyncio.CancelledError:
            if not reading.done():
                self.abandoned_blocks[rank] += own
                reading.add_done_callback(lambda _: self.abandoned_blocks.subtract({rank: own}))
            raise

    async def _wait_for_ever(self, rank: int, blocks: int) -> None:
        """vLLM warns, and waits for a transfer that it never began."""
        try:
            await self._death.wait()
        except asyncio.CancelledError:
            self.leaked_transfers += 1
            self.leaked_blocks[rank] += blocks
            raise
        self._core.check_alive()

    async def _read(self, params: NixlParams, needed: int) -> tuple[bytes, ...]:
        core = self._core
        try:
            await self._peers.join(params.engine_id, params.host, params.port)
            # The worker looks at them now, and not before.
            block_ids = first_group(params.block_ids, needed)
            if block_ids is None:
                raise core.die("nixl_bad_blocks")
            call = core.links.next_call()
            read = Read(call, params.engine_id, str(params.request_id), block_ids)
            reply = await self._peers.call(params.engine_id, read)
            if reply.error is not None:
                raise PeerError(reply.error)
        except PeerError as error:
            kind = UNREACHABLE if str(error) == ENGINE_DEAD else str(error)
            core.counters.errors[kind] += 1
            # kv_load_failure_policy "fail", vLLM's default.
            raise ApiError(500, f"Internal server error (sim: KV load failed: {kind})") from None
        return tuple(reply.contents)

    async def _tell(self, params: NixlParams) -> None:
        try:
            await self._peers.join(params.engine_id, params.host, params.port)
            freed = Freed(self._core.links.next_call(), params.engine_id, str(params.request_id))
            await self._peers.call(params.engine_id, freed)
        except PeerError:
            pass  # logged, and nothing comes of it: prefill's lease ends by itself

    # --- heartbeats

    def _want(self, params: NixlParams) -> None:
        if not params.is_renewable:
            return
        engine_id = str(params.engine_id)
        self._wanted[engine_id][str(params.request_id)] += 1
        self._addresses[engine_id] = (params.host, params.port)
        if not self._is_beating:
            self._is_beating = True
            self._spawn(self._beat())

    def _forget(self, params: NixlParams) -> None:
        engine_id, request_id = str(params.engine_id), str(params.request_id)
        wanted = self._wanted.get(engine_id)
        if not params.is_renewable or wanted is None:
            return
        wanted[request_id] -= 1
        if wanted[request_id] <= 0:
            del wanted[request_id]
        if not wanted:
            del self._wanted[engine_id]
            self._addresses.pop(engine_id, None)

    async def _beat(self) -> None:
        """While anything is wanted: at once, then six times in a lease."""
        while self._wanted and not self._core.is_dead:
            for engine_id, wanted in list(self._wanted.items()):
                self._spawn(self._beat_one(engine_id, list(wanted)))
            await asyncio.sleep(self._core.options.kv_lease_s / BEATS_IN_A_LEASE)
        self._is_beating = False

    async def _beat_one(self, engine_id: str, request_ids: list[str]) -> None:
        try:
            if self._peers.known(engine_id) is None:
                # The handshake alone: the next heartbeat goes through.
                await self._peers.join(engine_id, *self._addresses[engine_id])
                return
            call = self._core.links.next_call()
            await self._peers.call(engine_id, Beat(call, engine_id, request_ids))
        except PeerError:
            pass  # the read will say so

    def _wake(self) -> None:
        self._death.set()

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # seen: its reader may have left
