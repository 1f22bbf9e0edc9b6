"""A WRITE transfer that decode waits for, from the dispatch of both legs to prefill's push.

Decode has no time limit of its own for it, and keeps its blocks even when its client is gone
(protocol e). So one that nobody will push is not forgotten: either a notice frees the blocks, or
the slot is counted as having lost them.
"""

import msgspec

from sidecar.routing.slots import Slot


class Transfer(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    transfer_id: str
    prefill: str
    """the address of the instance that pushes"""
    decode: Slot
    """whose blocks wait"""
    since: float
    """Monotonic seconds, when both legs were dispatched: an engine that has died since has neither
    the blocks nor the transfer."""
