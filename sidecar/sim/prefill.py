"""The prefill side of a transfer: holds blocks, lets them be fetched (READ) or pushes them (WRITE).

Invariant: an answered prefill leg's blocks are held until fetched, pushed, released or reaped.
"""

import asyncio
from collections import OrderedDict
from os import urandom
from typing import Any

from sidecar.sim.blocks import BlockStore, Held, PushTarget
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
    STRUCTURED_SINCE,
    NotifyKiller,
    NotifyMessage,
    Release,
    RemoteBlocks,
    write_done,
    write_failed,
)
from sidecar.sim.options import Address, Rank
from sidecar.sim.peer_address import find_peer

UNNOTICED = ("unknown_transfer", "wrong_rank", "wrong_blocks")
"""What nobody notices of a READ: seen on vLLM 0.32, which reads what it is told to read. For a
version of which that was not seen they are a 500, which shows a router's fault sooner."""
MAX_NOTICES = 100_000
MAX_ENDED = 4096  # vLLM remembers as many terminal transfers (protocol c)


class Prefill:
    """The prefill legs of one engine, all its ranks."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.store = BlockStore(core.engine_id, core.options.tp_size)
        ports = core.options.notify_ports_of_rank
        # WRITE: what decode engines said before the prefill was done.
        self.notices: Hearing[RemoteBlocks] = Hearing(ports, MAX_NOTICES)
        self._releases: Hearing[int] = Hearing(ports, MAX_NOTICES)
        self._ended: OrderedDict[str, None] = OrderedDict()
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
        if request.sampling.max_tokens != 1:
            errors["prefill_max_tokens"] += 1
        if request.may_stop_early:
            # vLLM hands KV over only if the leg ended by length (protocol.md c).
            errors["prefill_may_stop_early"] += 1
        if request.stream:
            errors["prefill_streamed"] += 1
        if options.mode == "READ" or peer is None:
            return None
        return PushTarget(
            peer.host,
            peer.handshake_port,
            peer.notify_port,
            kv.remote_dp_size or 1,
            kv.remote_tp_size,
        )

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
            self._release_if_told((rank, held.transfer_id))
            self._push_if_ready((rank, held.transfer_id))
        return self._parameters(held) if is_kept else None

    def answer_handshake(self, rank: int, message: AnyMessage) -> Reply:
        """Answer what comes to a rank's handshake port: READ fetches."""
        if not isinstance(message, Fetch):
            return self._refuse(message, "wrong_port")
        error = self.store.check_fetch(
            rank, message.transfer_id, message.engine_id, message.block_ids, message.tp_size
        )
        if error in UNNOTICED and self._core.options.release < (0, 33):
            return self._read_blindly(rank, message, error)
        if error:
            return self._refuse(message, error)
        held = self.store.get(message.transfer_id)
        assert held is not None
        if not self._core.is_deaf(rank):
            # Decode's release stands for itself: it follows each read, at the notify port.
            self._take(held)
            self._core.counters.released += 1
        return Reply(message.call, contents=list(held.contents))

    def _read_blindly(self, rank: int, message: Fetch, error: str) -> Reply:
        """Memory is read, and nobody looks at what for; only what decode names is released."""
        self._core.counters.errors[error] += 1
        found = self.store.read(rank, message.block_ids)
        held = self.store.get(message.transfer_id)
        if held is not None and held.rank == rank and not self._core.is_deaf(rank):
            self._take(held)
            self._core.counters.released += 1
        return Reply(message.call, contents=[one or urandom(FREE_BLOCK_BYTES) for one in found])

    def hear(self, rank: Rank, message: NotifyMessage) -> None:
        """Hear what comes to a notify port; raises NotifyKiller for decode's messages."""
        match message:
            case RemoteBlocks():
                self._note(rank, message)
            case Release():
                self._release(rank, message)
            case _:
                raise NotifyKiller("notify_wrong_role")

    def close(self) -> None:
        """The life ends: give up what is still being sent."""
        for task in self._tasks:
            task.cancel()

    def reap(self, now: float) -> None:
        """Free what nobody came for within the defer time-out; `now` is loop time."""
        for held in self.store.reap(now):
            self._end(held)
            if held.block_ids:
                self._core.counters.reaped += 1
                self._core.counters.reaped_blocks += len(held.block_ids)
            # Before 0.33 nobody tells decode (protocol e).
            if held.target is not None and self._core.options.release >= STRUCTURED_SINCE:
                for decode_rank in range(held.target.dp_size):
                    self._tell(held.target, decode_rank, write_failed(held.transfer_id))

    def _refuse(self, message: AnyMessage, error: str) -> Reply:
        self._core.counters.errors[error] += 1
        return Reply(message.call, error=error)

    def _take(self, held: Held) -> None:
        """Its blocks go: to decode, or to nobody."""
        self.store.take(held.transfer_id)
        self._end(held)

    def _end(self, held: Held) -> None:
        """No message about this transfer means anything from now on."""
        self._ended[held.transfer_id] = None
        if len(self._ended) > MAX_ENDED:
            self._ended.popitem(last=False)
        self.notices.forget((held.rank, held.transfer_id))
        self._releases.forget((held.rank, held.transfer_id))

    def _note(self, rank: Rank, message: RemoteBlocks) -> None:
        if message.transfer_id in self._ended:
            return
        options, errors = self._core.options, self._core.counters.errors
        if options.mode != "WRITE":
            errors["notify_in_read_mode"] += 1
            return
        if message.told is not None:
            told = message.told.prefill_tp_size
            if told != options.tp_size and (told or rank.dp):
                errors["notify_wrong_tp_size"] += 1
                return
        key = (rank.dp, message.transfer_id)
        self.notices.note(key, rank.tp, message)
        self._push_if_ready(key)

    def _release(self, rank: Rank, message: Release) -> None:
        core, key = self._core, (rank.dp, message.transfer_id)
        if message.consumer_tp_size % core.options.tp_size and (
            message.consumer_tp_size > core.options.tp_size
        ):
            # Heard, but the worker raises when it counts (moriio_connector.py 230).
            core.die("release_tp_misfit")
            return
        held = self.store.get(message.transfer_id)
        is_early = held is None or held.rank != rank.dp
        if is_early and not self._releases.knows(key):
            core.counters.early_releases += 1
        self._releases.note(key, rank.tp, message.consumer_tp_size)
        self._release_if_told(key)

    def _release_if_told(self, key: Key) -> None:
        held, consumer_tp_size = self.store.get(key[1]), self._releases.last(key)
        if held is None or consumer_tp_size is None or held.rank != key[0]:
            return
        times = max(1, consumer_tp_size // self._core.options.tp_size)
        if not self._releases.is_complete(key, times):
            return
        self._take(held)
        if held.block_ids:
            self._core.counters.released += 1
            self._core.counters.released_by_notify += 1

    def _push_if_ready(self, key: Key) -> None:
        held, notice = self.store.get(key[1]), self.notices.last(key)
        if held is None or held.rank != key[0] or held.target is None:
            return
        if notice is None or not self.notices.is_complete(key):
            return
        self._take(held)
        error = self._check_target(held.target, notice)
        if error:
            # vLLM has no session for the rank: marks the write done and tells nobody.
            self._core.counters.errors[error] += 1
            return
        self._spawn(self._push(held, held.target, notice.decode_rank))

    def _check_target(self, target: PushTarget, notice: RemoteBlocks) -> str | None:
        told = notice.told
        if notice.decode_rank >= target.dp_size or (told and told.dp_size != target.dp_size):
            return "push_wrong_dp_size"
        if told and told.tp_size != (target.tp_size or self._core.options.tp_size):
            return "push_wrong_tp_size"
        return None

    async def _push(self, held: Held, target: PushTarget, decode_rank: int) -> None:
        links = self._core.links
        message = Push(links.next_call(), held.transfer_id, decode_rank, list(held.contents))
        try:
            reply = await links.call(
                Address(target.host, target.handshake_port + decode_rank), message
            )
        except LinkError:
            self._core.counters.errors["push_unreachable"] += 1
            return
        if reply.error:
            self._core.counters.errors[f"push_{reply.error}"] += 1
            return
        self._tell(target, decode_rank, write_done(held.transfer_id))
        if held.block_ids:
            self._core.counters.released += 1

    def _tell(self, target: PushTarget, decode_rank: int, payload: bytes) -> None:
        tp_size = target.tp_size or self._core.options.tp_size
        ports = rank_ports(target.notify_port, decode_rank, target.dp_size, tp_size)
        self._core.notifier.tell(target.host, ports, payload)

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
