"""NIXL's pull connector as an engine's: every engine has both sides, whatever its role.

Read in vLLM 0.32.0 and 0.33.0 (distributed/kv_transfer/kv_connector/v1/nixl/), where no role is
looked at: a leg at an engine of the other role is served, and counted here.
"""

from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from sidecar.sim.connector import PrefillLeg
from sidecar.sim.core import Core
from sidecar.sim.messages import AnyMessage, Reply
from sidecar.sim.model_request import ModelRequest
from sidecar.sim.nixl_decode import NixlDecode
from sidecar.sim.nixl_params import is_of_moriio
from sidecar.sim.nixl_prefill import NixlPrefill


class Nixl:
    """One engine's, all its ranks. Its ids are new in each life."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._engine_ids = _engine_ids(core.options.dp_size)
        # In place of vLLM's hash: version and model stand for all that it is of.
        compatibility = f"{core.options.version} {core.options.models[0]}"
        self._prefill = NixlPrefill(core, self._engine_ids, compatibility)
        self._decode = NixlDecode(core, compatibility)

    @property
    def engine_id(self) -> str:
        """Rank 0's."""
        return self._engine_ids[0]

    def claim(self, request: ModelRequest) -> int:
        """The whole prompt of a decode leg; a plain request expects nothing."""
        return request.prompt_tokens if request.leg == "decode" else 0

    def open_prefill(self, request: ModelRequest, rank: int, request_id: str) -> PrefillLeg:
        """Admit a leg."""
        self._note_role(request)
        if is_of_moriio(request.body["kv_transfer_params"]):
            self._core.counters.errors["moriio_params"] += 1
        return self._prefill.open(request, rank, request_id)

    async def obtain(
        self,
        request: ModelRequest,
        rank: int,
        request_id: str,  # noqa: ARG002  # the parameters alone say whose blocks they are
    ) -> tuple[bytes, ...]:
        """Read the blocks."""
        self._note_role(request)
        return await self._decode.obtain(request, rank)

    def refuse(self, params: Mapping[str, Any]) -> None:
        """Tell prefill, or die where keys are missing (`notify_kv_transfer_request_rejected`)."""
        self._decode.free(params)

    def answer(self, rank: int, message: AnyMessage) -> Reply:
        """What a decode rank says at this rank's side channel."""
        return self._prefill.answer(rank, message)

    def held_blocks(self, rank: int) -> int:
        """Under a lease, or decode's whose request has left."""
        decode = self._decode
        left = decode.leaked_blocks[rank] + decode.abandoned_blocks[rank]
        return self._prefill.leases[rank].blocks + left

    def state(self) -> dict[str, Any]:
        """Its part of /sim/state."""
        leases = self._prefill.leases
        return {
            "held_transfers": sum(one.requests for one in leases),
            "held_blocks": sum(one.blocks for one in leases),
            "notices": 0,
            "leaked_transfers": self._decode.leaked_transfers,
            "leaked_blocks": self._decode.leaked_blocks.total(),
        }

    def reap(self, now: float) -> None:
        """Give up what has no lease any more."""
        self._prefill.reap(now)

    def close(self) -> None:
        """Give up what is still being read."""
        self._decode.close()

    def _note_role(self, request: ModelRequest) -> None:
        if request.leg != self._core.options.role:
            self._core.counters.errors["wrong_role"] += 1


def _engine_ids(dp_size: int) -> list[str]:
    """A UUID, and with data-parallel ranks one for each (v1/engine/core.py)."""
    base = str(uuid4())
    return [base] if dp_size == 1 else [f"{base}_dp{rank}" for rank in range(dp_size)]
