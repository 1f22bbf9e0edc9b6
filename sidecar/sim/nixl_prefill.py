"""NIXL's prefill side: keeps a request's blocks under a lease until decode has read them.

Invariant: what an answered leg handed over is held until it is read, freed by decode, or its lease
is over.
"""

import asyncio
from collections.abc import Sequence
from os import urandom
from typing import Any

from sidecar.sim.choice_run import ChoiceRun
from sidecar.sim.core import Core
from sidecar.sim.leases import Leases
from sidecar.sim.messages import AnyMessage, Beat, Freed, Hello, Read, Reply
from sidecar.sim.model import block_contents
from sidecar.sim.model_request import ModelRequest
from sidecar.sim.prompt import Api

ENGINE_DEAD = "engine_dead"
"""Not heard by anyone in vLLM, whose listener dies with the engine."""


class NixlPrefill:
    """The prefill legs of one engine, all its ranks: each an engine of its own, with its own id."""

    def __init__(self, core: Core, engine_ids: Sequence[str], compatibility: str) -> None:
        self._core = core
        self._engine_ids = engine_ids
        self._compatibility = compatibility
        self.leases = [Leases(core.options.kv_lease_s) for _ in engine_ids]

    def open(self, request: ModelRequest, rank: int, request_id: str) -> "_Leg":
        """Admit a leg; what is wrong with it is counted and served."""
        errors = self._core.counters.errors
        if request.sampling.max_tokens != 1:
            errors["prefill_max_tokens"] += 1
        if request.stream:
            errors["prefill_streamed"] += 1
        return _Leg(self, request, rank, internal_id(request.api, request_id))

    def answer(self, rank: int, message: AnyMessage) -> Reply:
        """Answer a decode rank at the side channel."""
        error = self._error_of(rank, message)
        if error is not None:
            if error != ENGINE_DEAD:
                self._core.counters.errors[error] += 1
            return Reply(message.call, error=error)
        match message:
            case Read():
                return Reply(message.call, contents=self._read(rank, message))
            case Freed():
                self._free(rank, message.request_id)
            case Beat():
                self._renew(rank, message)
        return Reply(message.call)

    def hand_over(self, rank: int, request: ModelRequest, own_id: str, made: int) -> dict[str, Any]:
        """Hold a finished leg's blocks under a new lease; returns its KV parameters.

        The keys are those of nixl/pull_scheduler.py, `request_finished`, and the scheduler's own
        for cached tokens. `made` is how many tokens the leg wrote.
        """
        core, options = self._core, self._core.options
        now = asyncio.get_running_loop().time()
        lease = self.leases[rank].hold(own_id, block_contents(request.prompts[0]), now)
        parameters = {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [list(lease.block_ids)],
            "remote_engine_id": self._engine_ids[rank],
            "remote_request_id": own_id,
            "remote_host": core.host,
            "remote_port": core.handshake_port + rank,
            "tp_size": options.tp_size,
            "dcp_size": 1,
            "pp_size": 1,
            "remote_num_tokens": request.prompt_tokens + made - 1,
            "remote_blocks_expiry_time": None,
            "transfer_mode": "pull",
        }
        if options.release >= (0, 33):
            # One step for each rank that published its registration at the start.
            parameters["remote_registration_generation"] = options.tp_size
        return {**parameters, "remote_prefill_cached_tokens": 0}

    def reap(self, now: float) -> None:
        """Give up blocks whose lease is over."""
        for leases in self.leases:
            for lease in leases.expire(now):
                self._core.counters.reaped += 1
                self._core.counters.reaped_blocks += len(lease.block_ids)

    def _error_of(self, rank: int, message: AnyMessage) -> str | None:
        if self._core.is_dead:
            return ENGINE_DEAD
        if not isinstance(message, Hello | Read | Freed | Beat):
            return "wrong_port"
        if message.engine_id != self._engine_ids[rank]:
            return "nixl_wrong_engine_id"
        if isinstance(message, Hello) and message.compatibility != self._compatibility:
            return "nixl_incompatible"
        return None

    def _read(self, rank: int, message: Read) -> list[bytes]:
        leases, errors = self.leases[rank], self._core.counters.errors
        contents = leases.read(message.block_ids)
        lease = leases.end(message.request_id)
        if lease is None:
            errors[self._unknown(rank, message.request_id)] += 1
            return contents
        self._core.counters.released += 1
        if lease.block_ids[-len(message.block_ids) :] != tuple(message.block_ids):
            errors["nixl_wrong_blocks"] += 1
        return contents

    def _unknown(self, rank: int, request_id: str) -> str:
        has_expired = self.leases[rank].has_expired(request_id)
        return "nixl_lease_expired" if has_expired else "nixl_unknown_request"

    def _free(self, rank: int, request_id: str) -> None:
        if self.leases[rank].end(request_id) is None:
            # No fault: a client that leaves while decode writes is told of again.
            self._core.counters.late_releases += 1
            return
        self._core.counters.released += 1
        self._core.counters.released_by_notify += 1

    def _renew(self, rank: int, message: Beat) -> None:
        now = asyncio.get_running_loop().time()
        for request_id in message.request_ids:
            if self.leases[rank].renew(request_id, now):
                self._core.counters.renewals += 1


class _Leg:
    """One prefill leg."""

    def __init__(self, prefill: NixlPrefill, request: ModelRequest, rank: int, own_id: str) -> None:
        self._prefill = prefill
        self._request = request
        self._rank = rank
        self._own_id = own_id

    def finish(self, runs: Sequence[ChoiceRun], is_kept: bool) -> dict[str, Any] | None:
        """KV is handed over if the engine ended the leg by length or by a token that stops it.

        A stop string is found outside of the engine, which hears of an abort, unless the last
        token is there by then.
        """
        most = self._request.sampling.max_tokens
        if not is_kept or any(
            isinstance(run.stop_reason, str) and run.count < most for run in runs
        ):
            return None
        made = max((run.count for run in runs), default=most)
        return self._prefill.hand_over(self._rank, self._request, self._own_id, made)


def internal_id(api: Api, request_id: str) -> str:
    """How vLLM's engine names a request (protocol b)."""
    end = urandom(4).hex()
    match api:
        case "completions":
            return f"cmpl-{request_id}-0-{end}"
        case "responses":
            return f"{request_id}_0-{end}"
        case _:
            return f"chatcmpl-{request_id}-{end}"
