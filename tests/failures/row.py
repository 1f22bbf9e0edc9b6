"""What a row of the failure table says."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.failures.pool import NIXL, READ, WRITE, Pool

Counts = Mapping[str, Mapping[str, str]]
"""family (without `pd_sidecar_`) -> labels of the series that moves"""

STREAMED, WHOLE = "streamed", "whole"


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What one request that meets the event comes to, where KV goes in one way."""

    status: int | None
    """None: the answer's headers went out before, and the stream is cut"""
    reason: str = ""
    """`x-pd-error`, and the label of `refusals_total`; empty: neither"""
    outcome: str = "ok"
    within_s: float = 1.0
    """the answer is over by then"""
    blocks: str = "none"
    """what becomes of KV blocks, in words"""
    freed_within_s: float = 1.0
    """no engine holds any by then"""
    told_after_s: float | None = None
    """WRITE: decode hears from us, so long after its client; None: it does not"""
    counts: Counts = field(default_factory=dict)
    """what else moves by one"""
    body: Mapping[str, Any] | None = None
    """the engine's own, unchanged; None: ours, or a good answer"""


@dataclass(frozen=True, kw_only=True)
class Row:
    name: str
    event: str
    """in words"""
    arrange: Callable[[Pool], None]
    """brings the event about for the next requests"""
    expected: Mapping[str, Expected]
    """by how KV goes"""
    answers: tuple[str, ...] = (STREAMED, WHOLE)
    requests: int = 1
    """so many are sent, one after the other: one of them meets the event, and all are good"""
    has_own_pool: bool = False
    """it leaves its pool unfit for other rows, or needs one that no probe looks at"""
    has_other_connector: bool = False
    """its pool's prefill engines have it; such a row has its own pool"""
    body: bytes | None = None
    """sent in place of a good one"""
    headers: Mapping[str, str] = field(default_factory=dict)

    def of(self, mode: str) -> Expected | None:
        """NIXL goes as READ does, where a row does not say otherwise."""
        found = self.expected.get(mode)
        return self.expected.get(READ) if found is None and mode == NIXL else found


def both(**what: Any) -> dict[str, Expected]:
    """The same in READ and WRITE."""
    return {READ: Expected(**what), WRITE: Expected(**what)}
