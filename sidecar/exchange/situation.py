"""What an exchange needs to know of its surroundings: frozen, made once for each pool view."""

from collections.abc import Iterable

import msgspec

from sidecar.routing.instance import Role
from sidecar.routing.view import View


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Times in seconds, sizes in bytes (design §2, §7)."""

    prefill_timeout_s: float = 600.0
    """the whole prefill phase, attempts included"""
    prefill_attempts: int = 2
    max_body_bytes: int = 64 << 20
    hold_body_timeout_s: float = 1.0
    """WRITE: how long a 2xx of prefill whose body is not whole may hold decode's answer"""
    shows_route: bool = True
    """answers carry the route receipt, `x-pd-prefill` and `x-pd-decode`"""
    shows_addresses: bool = False
    """the receipt names addresses instead of instance names"""
    engine_api_key: str | None = None
    """replaces the client's Authorization on both legs"""


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """The pool, as far as the headers step asks."""

    is_draining: bool
    has_prefill: bool
    has_decode: bool
    models: tuple[str, ...]
    """the union of the served names, sorted"""

    @property
    def is_ready(self) -> bool:
        return self.has_prefill and self.has_decode and not self.is_draining


def survey(view: View) -> Situation:
    placeable = [m for m in view.members if m.is_placeable]
    return Situation(
        is_draining=view.is_draining,
        has_prefill=any(m.instance.role is Role.PREFILL for m in placeable),
        has_decode=any(m.instance.role is Role.DECODE for m in placeable),
        models=_union(m.models for m in placeable),
    )


def _union(names: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    return tuple(sorted({name for group in names for name in group}))
