"""The decode side of a transfer: fetches a prompt's blocks (READ) or waits for them (WRITE).

Invariant: WRITE waits for ever, as vLLM does, until `write_done` or `write_failed` comes to its
rank's notify port, the engine dies or the client leaves; in the last case the blocks count as
leaked, until one of the two messages comes or, before 0.33, for as long as the engine lives: what
was seen on 0.32, which forgets an aborted request's transfer and keeps its blocks.
"""

import asyncio
from dataclasses import dataclass
from os import urandom

from sidecar.sim.api_error import ApiError, EngineDead
from sidecar.sim.core import Core
from sidecar.sim.hearing import Hearing, Key
from sidecar.sim.kv_params import KvParams
from sidecar.sim.leases import FREE_BLOCK_BYTES
from sidecar.sim.link import LinkError
from sidecar.sim.messages import AnyMessage, Fetch, Push, Reply
from sidecar.sim.model import block_contents
from sidecar.sim.model_request import ModelRequest
from sidecar.sim.notifier import rank_ports
from sidecar.sim.notify_messages import (
    NotifyKiller,
    NotifyMessage,
    Told,
    WriteDone,
    WriteFailed,
    remote_blocks,
)
from sidecar.sim.options import Address, Rank
from sidecar.sim.peer_address import PeerAddress, find_peer

MAX_HEARD = 100_000
MAX_FAILED = 4096  # vLLM remembers as many failures of transfers it does not know (protocol e)
MAX_TP_SIZE = 1024
FREES_ABORTED_FROM = (0, 33)


@dataclass(slots=True)
class _Wait:
    """One request's wait for its blocks. Over: a message has ended it, so nothing can leak."""

    blocks: asyncio.Future[tuple[bytes, ...]]
    is_over: bool = False


class Decode:
    """The decode legs of one engine, all its ranks."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._waiting: dict[Key, _Wait] = {}
        self._next_block = 1
        self.leaked: dict[Key, int] = {}
        self._frees_aborted = core.options.release >= FREES_ABORTED_FROM
        # What prefill wrote and has not yet said so.
        self._written: dict[Key, tuple[bytes, ...]] = {}
        ports = core.options.notify_ports_of_rank
        self._done: Hearing[None] = Hearing(ports, MAX_HEARD)
        self._failed: Hearing[None] = Hearing(ports, MAX_FAILED)
        core.on_death.append(self._fail_waiting)

    async def obtain(
        self, request: ModelRequest, kv: KvParams, rank: int, request_id: str
    ) -> tuple[bytes, ...]:
        """The block contents that prefill computed; raises ApiError or EngineDead."""
        options = self._core.options
        own = block_contents(request.prompts[0])
        if options.mode == "READ" and not kv.remote_block_ids:
            if options.release < (0, 33):
                # Told of tokens that nobody brings.
                self._core.counters.errors["garbled_leg"] += 1
                return (urandom(FREE_BLOCK_BYTES),)
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
            return await self._await_push(kv, peer, rank, len(own), request_id)
        finally:
            self._core.waiting -= 1

    def answer_handshake(self, rank: int, message: AnyMessage) -> Reply:
        """Answer what comes to a rank's handshake port: the bytes of WRITE pushes."""
        error = self._accept(rank, message) if isinstance(message, Push) else "wrong_port"
        if error:
            self._core.counters.errors[error] += 1
        return Reply(message.call, error=error)

    def hear(self, rank: Rank, message: NotifyMessage) -> None:
        """Hear what comes to a notify port; raises NotifyKiller for prefill's messages."""
        if not isinstance(message, WriteDone | WriteFailed):
            raise NotifyKiller("notify_wrong_role")
        if self._core.options.mode != "WRITE":
            # Heard, and never looked at.
            self._core.counters.errors["notify_in_read_mode"] += 1
            return
        key = (rank.dp, message.transfer_id)
        heard = self._done if isinstance(message, WriteDone) else self._failed
        heard.note(key, rank.tp, None)
        if not heard.is_complete(key):
            return
        if heard is self._done:
            self._finish(key)
        else:
            self._fail(key)

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
        self, kv: KvParams, peer: PeerAddress, rank: int, blocks: int, request_id: str
    ) -> tuple[bytes, ...]:
        key = (rank, kv.transfer_id or f"tx-sim-{id(kv)}")
        wait = _Wait(asyncio.get_running_loop().create_future())
        if key in self._waiting:
            # vLLM's map is last-writer-wins: the first one waits for ever.
            self._core.counters.errors["transfer_id_reuse"] += 1
        self._waiting[key] = wait
        if self._is_notifier(kv, rank):
            self._notify(kv, peer, key, blocks, request_id)
        else:
            self._core.counters.errors["nobody_notifies"] += 1
        if self._failed.is_complete(key):
            self._fail(key)
        try:
            contents = await wait.blocks
        except asyncio.CancelledError:
            # A message may have ended the wait in the same turn of the loop, before or after.
            if not wait.is_over:
                self.leaked[key] = blocks
            raise
        finally:
            if self._waiting.get(key) is wait:
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

    def _notify(
        self, kv: KvParams, peer: PeerAddress, key: Key, blocks: int, request_id: str
    ) -> None:
        options = self._core.options
        rank, transfer_id = key
        first, self._next_block = self._next_block, self._next_block + blocks
        told = Told(options.dp_size, options.tp_size, kv.remote_tp_size)
        ids = range(first, self._next_block)
        payload = remote_blocks(request_id, transfer_id, ids, rank, told)
        # vLLM folds the rank by the prefill's ranks of a pod, default remote_dp_size.
        dp_size = kv.remote_dp_size or 1
        tp_size = min(kv.remote_tp_size or options.tp_size, MAX_TP_SIZE)
        ports = rank_ports(peer.notify_port, kv.remote_dp_rank % dp_size, dp_size, tp_size)
        self._core.notifier.tell(peer.host, ports, payload)

    def _accept(self, rank: int, message: Push) -> str | None:
        if message.decode_rank != rank:
            return "wrong_rank"
        key = (rank, message.transfer_id)
        if key not in self._waiting and key not in self.leaked:
            return "unknown_transfer"
        self._written[key] = tuple(message.contents)
        return None

    def _finish(self, key: Key) -> None:
        """Prefill says that all is written."""
        self._done.forget(key)
        contents = self._written.pop(key, None)
        if key in self.leaked:
            self._free_aborted(key)
            return
        wait = self._waiting.get(key)
        if wait is None or wait.is_over:
            self._core.counters.errors["unknown_transfer"] += 1
            return
        wait.is_over = True
        if wait.blocks.done():
            return  # its client has just left, or the engine died
        if contents is None:
            # Nobody wrote: vLLM decodes what lies in the blocks.
            self._core.counters.errors["write_done_without_push"] += 1
            contents = (urandom(16),)
        wait.blocks.set_result(contents)

    def _fail(self, key: Key) -> None:
        """Prefill, or a router in its place, says that nothing will be written any more."""
        wait = self._waiting.get(key)
        is_waiting = wait is not None and not wait.is_over
        if not is_waiting and key not in self.leaked:
            return  # remembered, for a request that comes later
        self._failed.forget(key)
        self._written.pop(key, None)
        self._free_aborted(key)
        self._core.counters.failed_by_notify += 1
        if wait is not None and is_waiting:
            wait.is_over = True
            if not wait.blocks.done():
                error = ApiError(500, "Internal server error (sim: KV load failed)")
                wait.blocks.set_exception(error)

    def _free_aborted(self, key: Key) -> None:
        if self._frees_aborted:
            self.leaked.pop(key, None)

    def _fail_waiting(self) -> None:
        for wait in self._waiting.values():
            if not wait.blocks.done():
                wait.blocks.set_exception(EngineDead())
