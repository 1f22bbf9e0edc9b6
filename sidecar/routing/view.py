"""The pool view: what a worker knows of the pool, sent whole whenever it changes.

Made by the control process, read by the workers; never changed in place.
"""

import msgspec

from sidecar.routing.instance import Instance, Role, State, Version
from sidecar.routing.model_card import ModelCard


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """An instance as placement sees it."""

    instance: Instance
    ordinal: int
    """given by the registry at first sight, unique among all roles, never reused"""
    endpoint: str
    """resolved `ip:port`, IPv6 in brackets: Envoy's `x-gateway-destination-endpoint`"""
    state: State
    is_placeable: bool
    """ready, and in an endpoint list that every connected Envoy has ACKed (design §4)"""
    version: Version | None = None
    """None: unknown, to be treated as 0.20 to 0.31"""
    models: tuple[str, ...] = ()
    """served names; empty: unknown, matches any"""
    cards: tuple[ModelCard, ...] = ()
    """what it says of each, as far as it was asked"""
    alive_since: float = 0.0
    """Monotonic seconds (the same clock in all our processes): what was placed there before lies at
    an engine that has died."""

    @property
    def name(self) -> str:
        """Short and stable, for receipts and tables: `p1`, `d2`."""
        return f"{self.instance.role[0]}{self.ordinal}"


class View(msgspec.Struct, frozen=True, kw_only=True):
    """The whole pool at one moment."""

    number: int
    """grows with every change"""
    members: tuple[Member, ...] = ()
    is_draining: bool = False

    def placeable(self, role: Role) -> list[Member]:
        return [m for m in self.members if m.is_placeable and m.instance.role is role]
