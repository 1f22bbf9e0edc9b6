"""MoRI-IO as an engine's connector: the prefill or the decode side, by the engine's role."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from sidecar.sim.api_error import ApiError
from sidecar.sim.blocks import PushTarget
from sidecar.sim.choice_run import ChoiceRun
from sidecar.sim.core import Core
from sidecar.sim.decode import Decode
from sidecar.sim.kv_params import KvParams
from sidecar.sim.messages import AnyMessage, Reply
from sidecar.sim.model_request import ModelRequest
from sidecar.sim.notify_messages import NotifyMessage
from sidecar.sim.options import Rank
from sidecar.sim.prefill import Prefill

NIXL_KEYS = ("remote_port", "remote_request_id")
"""MoRI-IO knows none of them, and NIXL's legs have them, be it as null."""


class Moriio:
    """One engine's, all its ranks."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._prefill = Prefill(core)
        self._decode = Decode(core)

    @property
    def engine_id(self) -> str:
        """`host:handshake_port`."""
        return self._core.engine_id

    def claim(self, request: ModelRequest) -> int:
        """As get_num_new_matched_tokens has it: READ leaves the last token, and before 0.33 claims
        those of plain requests too, which is how they are garbled."""
        options = self._core.options
        if options.role == "prefill":
            return 0
        if request.leg != "decode" and not options.garbles_plain_requests:
            return 0
        return request.prompt_tokens - (1 if options.mode == "READ" else 0)

    def open_prefill(self, request: ModelRequest, rank: int, request_id: str) -> "_Leg":
        """Admit a leg; raises ApiError at an engine that is no prefill engine."""
        kv = self._parameters(request, "prefill")
        target = self._prefill.check(request, kv, request_id)
        return _Leg(self._prefill, request, kv, rank, target)

    async def obtain(self, request: ModelRequest, rank: int, request_id: str) -> tuple[bytes, ...]:
        """Fetch the blocks (READ) or wait for them (WRITE)."""
        kv = self._parameters(request, "decode")
        traffic = self._core.traffic[rank]
        traffic.admit(request.prompt_tokens, self.claim(request))
        if self._core.options.mode == "READ":
            # vLLM fetches within the step: such a request runs.
            return await self._decode.obtain(request, kv, rank, request_id)
        with traffic.wait():
            return await self._decode.obtain(request, kv, rank, request_id)

    def refuse(self, params: Mapping[str, Any]) -> None:
        """Nothing is done: prefill's blocks stay until they are released or reaped."""

    def answer(self, rank: int, message: AnyMessage) -> Reply:
        """READ fetches at a prefill rank, WRITE pushes at a decode rank."""
        return self._side.answer_handshake(rank, message)

    def hear(self, rank: Rank, message: NotifyMessage) -> None:
        """Hear what comes to a notify port; raises NotifyKiller."""
        self._side.hear(rank, message)

    def held_blocks(self, rank: int) -> int:
        """For a peer, or leaked."""
        leaked = sum(blocks for (at, _), blocks in self._decode.leaked.items() if at == rank)
        return self._prefill.store.blocks_of(rank) + leaked

    def state(self) -> dict[str, Any]:
        """Its part of /sim/state."""
        return {
            "held_transfers": self._prefill.store.transfers,
            "held_blocks": self._prefill.store.blocks,
            "notices": len(self._prefill.notices),
            "leaked_transfers": len(self._decode.leaked),
            "leaked_blocks": sum(self._decode.leaked.values()),
        }

    def reap(self, now: float) -> None:
        """Free what nobody came for within the defer time-out."""
        self._prefill.reap(now)

    def close(self) -> None:
        """Give up what is still being sent."""
        self._prefill.close()

    @property
    def _side(self) -> Prefill | Decode:
        return self._prefill if self._core.options.role == "prefill" else self._decode

    def _parameters(self, request: ModelRequest, leg: str) -> KvParams:
        assert request.kv is not None
        errors = self._core.counters.errors
        given = request.body["kv_transfer_params"]
        if any(key in given for key in NIXL_KEYS):
            errors["nixl_params"] += 1
        if self._core.options.role != leg:
            errors["wrong_role"] += 1
            raise ApiError(500, f"Internal server error (sim: {leg} leg on wrong role)")
        return request.kv


class _Leg:
    """One prefill leg."""

    def __init__(
        self,
        prefill: Prefill,
        request: ModelRequest,
        kv: KvParams,
        rank: int,
        target: PushTarget | None,
    ) -> None:
        self._prefill = prefill
        self._request = request
        self._kv = kv
        self._rank = rank
        self._target = target

    def finish(self, runs: Sequence[ChoiceRun], is_kept: bool) -> dict[str, Any] | None:
        """KV is handed over only if the leg ended by length (protocol c)."""
        is_kept = is_kept and all(run.finish == "length" for run in runs)
        now = asyncio.get_running_loop().time()
        return self._prefill.finish(self._request, self._kv, self._rank, self._target, now, is_kept)
