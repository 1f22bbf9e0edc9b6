"""The prefill side of a transfer: holds blocks, lets them be fetched (READ) or pushes them (WRITE).

Invariant: an answered prefill leg's blocks are held until fetched, pushed, released or reaped.
"""

import asyncio
from collections import OrderedDict
from typing import Any

from sidecar.sim.blocks import BlockStore, Held, PushTarget
from sidecar.sim.core import Core
from sidecar.sim.kv_params import KvParams
from sidecar.sim.link import LinkError
from sidecar.sim.messages import AnyMessage, Fetch, Push, Release, RemoteBlocks, Reply, WriteFailed
from sidecar.sim.model import block_contents
from sidecar.sim.model_request import ModelRequest
from sidecar.sim.options import Address
from sidecar.sim.peer_address import find_peer

MAX_NOTICES = 100_000


class Prefill:
    """The prefill legs of one engine, all its ranks."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.store = BlockStore(core.engine_id, core.options.tp_size)
        # WRITE: what decode engines said before the prefill was done, by (rank, transfer id).
        self.notices: OrderedDict[tuple[int, str], RemoteBlocks] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()

    def check(self, request: ModelRequest, kv: KvParams, request_id: str) -> PushTarget | None:
        """Admit a leg, or die where vLLM's scheduler would raise; returns where to push."""
        options = self._core.options
        errors = self._core.counters.errors
        if options.mode == "WRITE" and not kv.has_required_keys:
            raise self._core.die("missing_kv_keys")
        peer = find_peer(options, request_id, kv)
        if peer is None and (options.mode == "WRITE" or options.needs_embedded_address):
            raise self._core.die("no_peer_address")
        if request.max_tokens != 1:
            errors["prefill_max_tokens"] += 1
        if request.may_stop_early:
            # vLLM hands KV over only if the leg ended by length (protocol.md c).
            errors["prefill_may_stop_early"] += 1
        if request.stream:
            errors["prefill_streamed"] += 1
        if options.mode == "READ" or peer is None:
            return None
        return PushTarget(peer.host, peer.notify_port, kv.remote_dp_size or 1, kv.remote_tp_size)

    def finish(
        self,
        request: ModelRequest,
        kv: KvParams,
        rank: int,
        target: PushTarget | None,
        now: float,
        is_kept: bool,
    ) -> dict[str, Any] | None:
        """The forward is done: hold the blocks, push if decode waits; returns the KV parameters.

        `now` is loop time in seconds. The keys are those of protocol c, "Prefill response".
        Without `is_kept` the leg ended otherwise than by length: there are no parameters and no
        blocks. In WRITE the pushes are queued by then and run all the same.
        """
        contents = block_contents(request.prompts[0])
        held = Held(
            transfer_id=kv.transfer_id or f"tx-sim-{id(request)}",
            rank=rank,
            block_ids=self.store.allocate(len(contents)) if is_kept else (),
            contents=contents,
            deadline=now + self._core.options.defer_timeout_s,
            target=target,
        )
        if kv.transfer_id is None:
            self._core.counters.errors["missing_transfer_id"] += 1
        elif not self.store.note_use(held.transfer_id):
            self._core.counters.errors["transfer_id_reuse"] += 1
        elif is_kept or target is not None:
            self.store.hold(held)
            self._push_if_ready(rank, held.transfer_id)
        return self._parameters(held) if is_kept else None

    def answer_handshake(self, rank: int, message: AnyMessage) -> Reply:
        """Answer what comes to a rank's handshake port: READ fetches."""
        if not isinstance(message, Fetch):
            return self._refuse(message, "wrong_port")
        error = self.store.check_fetch(
            rank, message.transfer_id, message.engine_id, message.block_ids, message.tp_size
        )
        if error:
            return self._refuse(message, error)
        held = self.store.take(message.transfer_id)
        assert held is not None
        self._core.counters.released += 1
        return Reply(message.call, contents=list(held.contents))

    def answer_notify(self, rank: int, message: AnyMessage) -> Reply:
        """Answer what comes to a rank's notify port: WRITE notices, and releases."""
        match message:
            case RemoteBlocks():
                return self._note(rank, message)
            case Release():
                if self.store.take(message.transfer_id) is None:
                    return self._refuse(message, "unknown_release")
                self._core.counters.released += 1
                return Reply(message.call)
            case _:
                return self._refuse(message, "wrong_port")

    def close(self) -> None:
        """The life ends: give up what is still being sent."""
        for task in self._tasks:
            task.cancel()

    def reap(self, now: float) -> None:
        """Free what nobody came for within the defer time-out; `now` is loop time."""
        for held in self.store.reap(now):
            if held.block_ids:
                self._core.counters.reaped += 1
                self._core.counters.reaped_blocks += len(held.block_ids)
            # Before 0.33 nobody tells decode (protocol.md e).
            if held.target is not None and self._core.options.release >= (0, 33):
                self._spawn(self._report_failure(held, held.target))

    def _refuse(self, message: AnyMessage, error: str) -> Reply:
        self._core.counters.errors[error] += 1
        return Reply(message.call, error=error)

    def _note(self, rank: int, message: RemoteBlocks) -> Reply:
        if self._core.options.mode != "WRITE":
            return self._refuse(message, "notify_in_read_mode")
        told = message.prefill_tp_size
        if told != self._core.options.tp_size and (told or rank):
            return self._refuse(message, "notify_wrong_tp_size")
        self.notices[rank, message.transfer_id] = message
        if len(self.notices) > MAX_NOTICES:
            self.notices.popitem(last=False)
        self._push_if_ready(rank, message.transfer_id)
        return Reply(message.call)

    def _push_if_ready(self, rank: int, transfer_id: str) -> None:
        held = self.store.get(transfer_id)
        notice = self.notices.get((rank, transfer_id))
        if held is None or notice is None or held.rank != rank or held.target is None:
            return
        self.store.take(transfer_id)
        del self.notices[rank, transfer_id]
        error = self._check_target(held.target, notice)
        if error:
            # vLLM has no session for the rank: marks the write done and tells nobody.
            self._core.counters.errors[error] += 1
            return
        self._spawn(self._push(held, held.target, notice.decode_rank))

    def _check_target(self, target: PushTarget, notice: RemoteBlocks) -> str | None:
        if notice.decode_rank >= target.dp_size or notice.dp_size != target.dp_size:
            return "push_wrong_dp_size"
        if notice.tp_size != (target.tp_size or self._core.options.tp_size):
            return "push_wrong_tp_size"
        return None

    async def _push(self, held: Held, target: PushTarget, decode_rank: int) -> None:
        links = self._core.links
        message = Push(links.next_call(), held.transfer_id, decode_rank, list(held.contents))
        try:
            reply = await links.call(
                Address(target.host, target.notify_port + decode_rank), message
            )
        except LinkError:
            self._core.counters.errors["push_unreachable"] += 1
            return
        if reply.error:
            self._core.counters.errors[f"push_{reply.error}"] += 1
        else:
            self._core.counters.released += 1

    async def _report_failure(self, held: Held, target: PushTarget) -> None:
        links = self._core.links
        for decode_rank in range(target.dp_size):
            message = WriteFailed(links.next_call(), held.transfer_id)
            try:
                await links.call(Address(target.host, target.notify_port + decode_rank), message)
            except LinkError:
                self._core.counters.errors["write_failed_unreachable"] += 1

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _parameters(self, held: Held) -> dict[str, Any]:
        core = self._core
        ids = list(held.block_ids)
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": ids if core.options.release < (0, 20) else [ids],
            "remote_engine_id": core.engine_id,
            "remote_host": core.host,
            "remote_handshake_port": core.handshake_port,
            "remote_notify_port": core.notify_port,
            "remote_dp_rank": held.rank,
            "remote_dp_rank_override": True,
            "remote_dp_size": core.options.dp_size,
            "remote_dp_size_local": core.options.dp_size,
            "tp_size": core.options.tp_size,
            "transfer_id": held.transfer_id,
            "remote_prefill_cached_tokens": 0,
        }
