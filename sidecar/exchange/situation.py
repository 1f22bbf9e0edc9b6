"""What an exchange needs to know of its surroundings: frozen, made once for each pool view."""

from collections.abc import Iterable
from functools import cached_property

import msgspec

from sidecar.routing.instance import Role
from sidecar.routing.model_card import ModelCard
from sidecar.routing.view import Member, View


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Times in seconds, sizes in bytes (design §2, §7)."""

    prefill_timeout_s: float = 600.0
    """the whole prefill phase, attempts included"""
    prefill_attempts: int = 2
    max_body_bytes: int = 64 << 20
    hold_body_timeout_s: float = 1.0
    """WRITE: how long a 2xx of prefill whose body is not whole may hold decode's answer"""
    aggregated_role: Role = Role.PREFILL
    """who serves requests that one transfer cannot carry; decode only where it is safe"""
    writes_in_series: bool = False
    """WRITE: decode is asked after prefill has answered, where the engines can do that"""
    shows_route: bool = True
    """answers carry the route receipt, `x-pd-prefill` and `x-pd-decode`"""
    shows_addresses: bool = False
    """the receipt names addresses instead of instance names"""
    engine_api_key: str | None = None
    """replaces the client's Authorization on both legs"""


class Situation(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The pool, as far as a request's headers and fields ask."""

    is_draining: bool = False
    has_prefill: bool = False
    has_decode: bool = False
    cards: tuple[ModelCard, ...] = ()
    """one of each model that is served, sorted by name"""
    serves_alike: bool = True
    """every instance serves the same names, as far as they have said"""
    default_model: str | None = ""
    """What a request means that names no model; empty: that of any instance. None: there are
    several, and it must name one."""

    @property
    def is_ready(self) -> bool:
        return self.has_prefill and self.has_decode and not self.is_draining

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(card.name for card in self.cards)

    def context_tokens(self, model: str) -> int | None:
        """Of prompt and answer together, the least that any instance says; None: unknown."""
        card = self._by_name.get(model or self.default_model or "")
        if card is not None and card.max_model_len is None and card.parent is not None:
            card = self._by_name.get(card.parent)  # an adapter has its model's
        return card.max_model_len if card is not None else None

    def model_label(self, model: str) -> str:
        """The name for metrics and logs: clients may write anything, instances serve little."""
        name = model or self.default_model or ""
        return name if name in self._by_name or not name else "other"

    @cached_property
    def _by_name(self) -> dict[str, ModelCard]:
        """Made once for a view, not for each request: engines may have a thousand adapters."""
        return {card.name: card for card in self.cards}


def survey(view: View) -> Situation:
    placeable = [m for m in view.members if m.is_placeable]
    return Situation(
        is_draining=view.is_draining,
        has_prefill=any(m.instance.role is Role.PREFILL for m in placeable),
        has_decode=any(m.instance.role is Role.DECODE for m in placeable),
        cards=_union(card for member in placeable for card in _cards(member)),
        serves_alike=len({frozenset(m.models) for m in placeable}) < 2,
        default_model=_default_model(view.members),
    )


def _cards(member: Member) -> tuple[ModelCard, ...]:
    return member.cards or tuple(ModelCard(name) for name in member.models)


def _union(cards: Iterable[ModelCard]) -> tuple[ModelCard, ...]:
    by_name: dict[str, ModelCard] = {}
    for card in cards:
        seen = by_name.setdefault(card.name, card)
        if (card.max_model_len or 0) < (seen.max_model_len or 0) and card.max_model_len:
            by_name[card.name] = card
    return tuple(by_name[name] for name in sorted(by_name))


def _default_model(members: Iterable[Member]) -> str | None:
    """Of all members, also those that are away: a request must not go to another model because its
    own has no instance at the moment. A name that all serve is the only model, whatever adapters
    some have."""
    known = [_base_names(member) for member in members if member.models]
    if not known:
        return ""
    shared = set(known[0]).intersection(*known[1:])
    return min(shared, key=known[0].index) if shared else None


def _base_names(member: Member) -> list[str]:
    return [card.name for card in _cards(member) if card.parent is None]
