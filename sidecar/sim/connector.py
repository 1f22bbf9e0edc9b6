"""What an engine asks of its KV connector; MoRI-IO's and NIXL's differ in all the rest."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from sidecar.sim.choice_run import ChoiceRun
from sidecar.sim.messages import AnyMessage, Reply
from sidecar.sim.model_request import ModelRequest


class PrefillLeg(Protocol):
    """One admitted prefill leg."""

    def finish(self, runs: Sequence[ChoiceRun], is_kept: bool) -> dict[str, Any] | None:
        """The forward is done: hold the blocks; returns the answer's KV parameters.

        `runs` may be empty: they ended by length. Without `is_kept` a fault keeps the KV here.
        """
        ...


class Connector(Protocol):
    """One engine's, all its ranks. Raises ApiError, or EngineDead where vLLM's engine would end."""

    @property
    def engine_id(self) -> str:
        """Rank 0's, as peers name it."""
        ...

    def claim(self, request: ModelRequest) -> int:
        """How many tokens of its prompt this engine expects from outside."""
        ...

    def open_prefill(self, request: ModelRequest, rank: int, request_id: str) -> PrefillLeg:
        """Admit a prefill leg."""
        ...

    async def obtain(self, request: ModelRequest, rank: int, request_id: str) -> tuple[bytes, ...]:
        """The blocks of a decode leg; the scheduler has taken it by then."""
        ...

    def refuse(self, params: Mapping[str, Any]) -> None:
        """A decode leg with these parameters ended before the engine had taken or served it."""
        ...

    def answer(self, rank: int, message: AnyMessage) -> Reply:
        """Answer what a peer sends to a rank's handshake port."""
        ...

    def held_blocks(self, rank: int) -> int:
        """Blocks that belong to no request in the engine: for a peer, or leaked."""
        ...

    def state(self) -> dict[str, Any]:
        """Its part of /sim/state."""
        ...

    def reap(self, now: float) -> None:
        """Give up what nobody came for; `now` is loop time in seconds."""
        ...

    def close(self) -> None:
        """The life ends."""
        ...
