"""What an exchange asks of its driver. Values only; the driver performs them in order.

There is none for the end: in phase DONE the driver ends the ext_proc stream, and Envoy carries on
alone.
"""

import msgspec

from sidecar.exchange.records import Record
from sidecar.exchange.transfer import Transfer
from sidecar.routing.slots import Demand, Placement
from sidecar.wire.ext_proc import Reply


class Send(msgspec.Struct, frozen=True):
    """Write one reply to Envoy."""

    reply: Reply


class Place(msgspec.Struct, frozen=True):
    """Pick slots now, synchronously, and hand the Placement or NoPlacement back as an event."""

    demand: Demand


class Confirm(msgspec.Struct, frozen=True):
    """Look at the decode slot once more, and hand back the placement, with another one if it
    went."""

    placement: Placement
    demand: Demand


class StartPrefill(msgspec.Struct, frozen=True, kw_only=True):
    """POST the prefill leg; its end comes back as PrefillAnswered or PrefillFailed."""

    url: str
    headers: dict[str, str]
    body: bytes
    timeout_s: float
    """for the whole answer"""
    body_timeout_s: float | None
    """after a 2xx status line, for the rest of the answer; None: no limit of its own"""
    transfer: Transfer | None = None
    """WRITE: what decode waits for from now on, to be kept until EndTransfer or FailTransfer"""


class ClosePrefill(msgspec.Struct, frozen=True):
    """Close the prefill leg if it still runs: for vLLM that is the abort."""


class EndTransfer(msgspec.Struct, frozen=True):
    """Prefill has answered, or decode has ended by itself."""

    transfer_id: str
    is_answered: bool
    """prefill pushes, if it has not yet and its engine does not die; else nobody waits any more"""


class FailTransfer(msgspec.Struct, frozen=True):
    """Prefill will not push, and decode does not know."""

    transfer_id: str
    is_certain: bool
    """prefill never began; else it may still push until its engine's own time limit is over"""


class Note(msgspec.Struct, frozen=True):
    """Tell the control process."""

    record: Record


Effect = Send | Place | Confirm | StartPrefill | ClosePrefill | EndTransfer | FailTransfer | Note
