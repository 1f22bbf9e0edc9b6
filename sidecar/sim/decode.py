"""The decode side of a transfer: fetches a prompt's blocks (READ) or waits for them (WRITE).

Invariant: WRITE waits for ever, as vLLM does, until the push, a `write_failed`, the engine's
death or the client's leaving; in the last case the blocks count as leaked until a push comes.
"""

import asyncio

from sidecar.sim.api_error import ApiError, EngineDead
from sidecar.sim.core import Core
from sidecar.sim.kv_params import KvParams
from sidecar.sim.link import LinkError
from sidecar.sim.messages import AnyMessage, Fetch, Push, RemoteBlocks, Reply, WriteFailed
from sidecar.sim.model import block_contents
from sidecar.sim.model_request import ModelRequest
from sidecar.sim.options import Address
from sidecar.sim.peer_address import PeerAddress, find_peer

_Key = tuple[int, str]  # rank, transfer id


class Decode:
    """The decode legs of one engine, all its ranks."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._waiting: dict[_Key, asyncio.Future[tuple[bytes, ...]]] = {}
        self._next_block = 1
        self.leaked: dict[_Key, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        core.on_death.append(self._fail_waiting)

    async def obtain(
        self, request: ModelRequest, kv: KvParams, rank: int, request_id: str
    ) -> tuple[bytes, ...]:
        """The block contents that prefill computed; raises ApiError or EngineDead."""
        options = self._core.options
        own = block_contents(request.prompts[0])
        if options.mode == "READ" and not kv.remote_block_ids:
            # vLLM says nothing and prefills locally: right text, but no transfer.
            self._core.counters.local_prefills += 1
            return own
        peer = find_peer(options, request_id, kv)
        if peer is None or not 0 < peer.handshake_port + kv.remote_dp_rank < 65536:
            raise self._core.die("no_peer_address")
        self._core.waiting += 1
        try:
            if options.mode == "READ":
                return await self._fetch(kv, peer)
            return await self._await_push(kv, peer, rank, len(own))
        finally:
            self._core.waiting -= 1

    def answer_notify(self, rank: int, message: AnyMessage) -> Reply:
        """Answer what comes to a rank's notify port: pushes and their failures."""
        match message:
            case Push():
                error = self._accept(rank, message)
            case WriteFailed():
                error = None
                self._fail(rank, message.transfer_id)
            case _:
                error = "wrong_port"
        if error:
            self._core.counters.errors[error] += 1
        return Reply(message.call, error=error)

    def answer_handshake(self, _rank: int, message: AnyMessage) -> Reply:
        """A decode engine's blocks are never fetched."""
        self._core.counters.errors["wrong_port"] += 1
        return Reply(message.call, error="wrong_port")

    def close(self) -> None:
        """The life ends: give up what is still being sent."""
        for task in self._tasks:
            task.cancel()

    async def _fetch(self, kv: KvParams, peer: PeerAddress) -> tuple[bytes, ...]:
        if kv.remote_dp_rank >= (kv.remote_dp_size or 1):
            raise self._fail_fetch("no_session_for_rank")
        links = self._core.links
        message = Fetch(
            links.next_call(),
            kv.transfer_id or "",
            kv.remote_engine_id,
            list(kv.remote_block_ids),
            kv.remote_tp_size,
        )
        try:
            reply = await links.call(
                Address(peer.host, peer.handshake_port + kv.remote_dp_rank), message
            )
        except LinkError:
            # vLLM's whole engine would hang here; an error shows the proxy's fault sooner.
            raise self._fail_fetch("peer_unreachable") from None
        if reply.error:
            raise self._fail_fetch(reply.error)
        return tuple(reply.contents)

    def _fail_fetch(self, error: str) -> ApiError:
        self._core.counters.errors[error] += 1
        return ApiError(500, f"Internal server error (sim: KV load failed: {error})")

    async def _await_push(
        self, kv: KvParams, peer: PeerAddress, rank: int, blocks: int
    ) -> tuple[bytes, ...]:
        key = (rank, kv.transfer_id or f"tx-sim-{id(kv)}")
        future: asyncio.Future[tuple[bytes, ...]] = asyncio.get_running_loop().create_future()
        if key in self._waiting:
            # vLLM's map is last-writer-wins: the first one waits for ever.
            self._core.counters.errors["transfer_id_reuse"] += 1
        self._waiting[key] = future
        if self._is_notifier(kv, rank):
            task = asyncio.create_task(self._notify(kv, peer, key, blocks))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            self._core.counters.errors["nobody_notifies"] += 1
        try:
            contents = await future
        except asyncio.CancelledError:
            self.leaked[key] = blocks
            raise
        finally:
            if self._waiting.get(key) is future:
                del self._waiting[key]
        if len(contents) != blocks:
            self._core.counters.errors["push_block_count"] += 1
        return contents

    def _is_notifier(self, kv: KvParams, rank: int) -> bool:
        """Whether this rank tells prefill its blocks (protocol.md c, "Who notifies")."""
        if kv.is_request_leader is not None:
            return kv.is_request_leader
        # Default: the rank is on pod 0, and a simulated instance has one pod only.
        return not kv.remote_dp_rank_override or rank == kv.remote_dp_rank

    async def _notify(self, kv: KvParams, peer: PeerAddress, key: _Key, blocks: int) -> None:
        options = self._core.options
        links = self._core.links
        first, self._next_block = self._next_block, self._next_block + blocks
        message = RemoteBlocks(
            links.next_call(),
            transfer_id=key[1],
            decode_rank=key[0],
            dp_size=options.dp_size,
            tp_size=options.tp_size,
            prefill_tp_size=kv.remote_tp_size,
            block_ids=list(range(first, self._next_block)),
        )
        # vLLM folds the rank by the prefill's ranks of a pod, default remote_dp_size.
        offset = kv.remote_dp_rank % (kv.remote_dp_size or 1)
        try:
            await links.call(Address(peer.host, peer.notify_port + offset), message)
        except LinkError:
            self._core.counters.errors["notify_unreachable"] += 1

    def _accept(self, rank: int, message: Push) -> str | None:
        if message.decode_rank != rank:
            return "wrong_rank"
        key = (rank, message.transfer_id)
        if self.leaked.pop(key, None) is not None:
            return None
        future = self._waiting.get(key)
        if future is None or future.done():
            return "unknown_transfer"
        future.set_result(tuple(message.contents))
        return None

    def _fail(self, rank: int, transfer_id: str) -> None:
        self.leaked.pop((rank, transfer_id), None)
        future = self._waiting.get((rank, transfer_id))
        if future is not None and not future.done():
            future.set_exception(self._fail_fetch("write_failed"))

    def _fail_waiting(self) -> None:
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(EngineDead())
