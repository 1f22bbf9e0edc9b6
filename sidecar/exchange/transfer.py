"""A WRITE transfer that decode waits for, from the dispatch of both legs to the end of prefill's.

Decode has no time limit of its own for it, and keeps its blocks even when its client is gone
(protocol e). So a transfer whose prefill fails is not forgotten: either a notice frees the blocks,
or the slot is counted as having lost them.
"""

import msgspec

from sidecar.routing.slots import Slot
from sidecar.wire.kv_notice import Notice


class Transfer(msgspec.Struct, frozen=True, kw_only=True):
    transfer_id: str
    decode: Slot
    """whose blocks wait"""
    notice: Notice | None
    """what frees them; None: this engine would not understand it"""
