"""Faults on demand: what the next requests of a leg suffer, set at /sim/faults.

Pure: says which fault, `completion_routes` and `generation` do it. `status`, `slow` and `hang` act
before any header; `reset` on arrival, or after the headers; `stall` stops after `after_tokens`
tokens until the client leaves, `cut` drops the connection there; `no_kv` and `eos` are prefill
legs that hand nothing over (protocol c, "Prefill response").
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from sidecar.sim.counters import Leg

Kind = Literal["reset", "status", "slow", "hang", "stall", "cut", "no_kv", "eos"]
When = Literal["before", "after"]
KINDS: tuple[Kind, ...] = get_args(Kind)
PREFILL_KINDS: tuple[Kind, ...] = ("no_kv", "eos")
PARAMETERS: Mapping[Kind, tuple[str, ...]] = {
    "reset": ("when",),
    "status": ("status", "body", "headers"),
    "slow": ("delay_s",),
    "stall": ("after_tokens",),
    "cut": ("after_tokens",),
}
"""What each kind reads; the others read nothing."""
FOR_EVER = -1


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault with its parameters, of which a kind reads its own alone."""

    kind: Kind
    when: When = "before"
    """`reset`: on arrival, or after the status line and the headers."""
    status: int = 500
    body: str | dict[str, Any] | None = None
    """None: as vLLM words that status."""
    headers: Mapping[str, str] = field(default_factory=dict)
    delay_s: float = 0.0
    after_tokens: int = 0
    """0 = headers alone, of a streamed answer."""


class Faults:
    """The fault of each leg kind and how many requests it is still for."""

    def __init__(self) -> None:
        self._left: dict[Leg, tuple[Fault, int]] = {}

    def set(self, leg: Leg, fault: Fault, count: int) -> None:
        """The next `count` requests of this leg suffer the fault, in place of an earlier one."""
        self._left[leg] = (fault, count)

    def clear(self) -> None:
        """No leg suffers anything any more."""
        self._left.clear()

    def take(self, leg: Leg) -> Fault | None:
        """The fault of a request that has just come, or None."""
        if leg not in self._left:
            return None
        fault, left = self._left[leg]
        if left == 1:
            del self._left[leg]
        elif left != FOR_EVER:
            self._left[leg] = (fault, left - 1)
        return fault

    def listed(self) -> list[dict[str, Any]]:
        """What is set, ready for JSON."""
        return [
            {
                "leg": leg,
                "kind": fault.kind,
                **{name: getattr(fault, name) for name in PARAMETERS.get(fault.kind, ())},
                "left": left,
            }
            for leg, (fault, left) in self._left.items()
        ]
