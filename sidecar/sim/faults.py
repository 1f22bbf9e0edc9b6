"""Faults on demand: what the next requests of a leg suffer, set at /sim/fail.

Pure: says which fault, `completion_routes` does it. The kinds:
`status` answers with that status before any header; `reset` drops the connection on arrival;
`stall` stops after `after_tokens` tokens until the client leaves; `cut` drops the connection
there; `no_kv` is a prefill leg whose first token ended it: 200 without KV parameters.
"""

from dataclasses import dataclass
from typing import Literal

from sidecar.sim.counters import Leg

Kind = Literal["status", "reset", "stall", "cut", "no_kv"]
KINDS: tuple[Kind, ...] = ("status", "reset", "stall", "cut", "no_kv")


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault. `after_tokens` is for streamed `stall` and `cut`: 0 = headers alone."""

    kind: Kind
    status: int = 500
    after_tokens: int = 0


class Faults:
    """The fault of each leg kind and how many requests it is still for."""

    def __init__(self) -> None:
        self._left: dict[Leg, tuple[Fault, int]] = {}

    def set(self, leg: Leg, fault: Fault, count: int) -> None:
        """The next `count` requests of this leg suffer the fault; 0 ends it."""
        self._left[leg] = (fault, count)

    def take(self, leg: Leg) -> Fault | None:
        """The fault of a request that has just come, or None."""
        fault, count = self._left.get(leg, (None, 0))
        if fault is None or count < 1:
            return None
        self._left[leg] = (fault, count - 1)
        return fault
