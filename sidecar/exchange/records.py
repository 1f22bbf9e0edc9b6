"""What a worker tells the control process of an exchange, and the control process a worker of the
pool.

Compact frozen values for one hop between our own processes (MessagePack, same version on both
ends).
"""

import msgspec

from sidecar.exchange.reasons import Reason
from sidecar.routing.instance import TransferMode
from sidecar.routing.slots import Slot
from sidecar.routing.view import View


class Placed(msgspec.Struct, frozen=True, kw_only=True, tag="placed"):
    """The slots are taken. A second one of the same exchange (a retry) replaces the first.

    Has every field of `access_log.Trail`, by which the exchange is adopted after a restart.
    """

    exchange: str
    request_id: str = ""
    """what the client knows it by; empty: adopted after a restart"""
    worker: int
    api: str
    model: str
    is_streaming: bool
    mode: TransferMode | None
    """None: aggregated, or a single-instance path"""
    is_late_decode: bool = False
    """WRITE in which decode is asked after prefill has answered"""
    prefill: Slot | None
    decode: Slot | None
    transfer_id: str = ""
    """of this attempt; empty: no transfer"""
    prompt_bytes: int = 0
    placement_s: float = 0.0

    @property
    def is_in_series(self) -> bool:
        return self.mode is TransferMode.READ or self.is_late_decode


class PrefillEnded(msgspec.Struct, frozen=True, kw_only=True, tag="prefill"):
    """The prefill slot is free again."""

    exchange: str
    seconds: float | None
    """None: the leg was closed before it answered"""
    reason: Reason | None
    """None: prefill answered 200, or the leg was closed"""
    has_kv: bool = False
    """it holds KV blocks for decode"""


class Moved(msgspec.Struct, frozen=True, kw_only=True, tag="moved"):
    """The decode slot was given up for another one: its instance went while prefill ran."""

    exchange: str
    decode: Slot


class Spare(msgspec.Struct, frozen=True):
    """A decode slot that serves only if the chosen one refuses the connection."""

    slot: Slot
    endpoint: str
    """by which Envoy's log names it"""


class Replied(msgspec.Struct, frozen=True, kw_only=True, tag="replied"):
    """The worker's last reply is written.

    With `is_handed_over` the decode slot passes to the access log, else the worker has released it.
    """

    exchange: str
    is_handed_over: bool
    reason: Reason | None = None
    """why the worker itself answered the client"""
    phase: str = ""
    """where the client left: upload, prefill, decode (only when it did)"""
    is_prefill_running: bool = False
    """WRITE: the prefill leg goes on without its client, and holds its slot until it ends"""
    spare: Spare | None = None
    """READ: the second host that Envoy may have turned to"""
    gap_s: float | None = None
    """from prefill's answer to the reply that dispatches decode"""
    overhead_s: float | None = None
    """all sidecar time but waiting for prefill"""


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """Answered before anything was placed."""

    exchange: str
    api: str
    model: str
    is_streaming: bool
    reason: Reason


class TransferFailed(msgspec.Struct, frozen=True, kw_only=True, tag="transfer_failed"):
    """WRITE: decode was left waiting for a push that will not come."""

    decode: Slot
    is_freed: bool
    """its engine was told; else its blocks are lost until it restarts"""


Record = Placed | PrefillEnded | Moved | Replied | Refused | TransferFailed


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag="hello"):
    """A worker's first frame on a new link: who it is and what it holds open."""

    worker: int
    pid: int
    open: tuple[Placed, ...] = ()
    running_on: tuple[Placed, ...] = ()
    """of them only the prefill leg still runs"""


class Batch(msgspec.Struct, frozen=True, kw_only=True, tag="batch"):
    """The records of at most 50 ms, in order."""

    records: tuple[Record, ...]
    dropped: int = 0
    """records lost while the control process was away, beyond the bounded queue"""
    unlocked_picks: int = 0
    """picks made without the cursors' lock (it was held for over 50 ms)"""


FromWorker = Hello | Batch

_from_worker = msgspec.msgpack.Decoder(FromWorker)
_view = msgspec.msgpack.Decoder(View)


def encode(message: FromWorker | View) -> bytes:
    return msgspec.msgpack.encode(message)


def decode_from_worker(data: bytes) -> FromWorker:
    return _from_worker.decode(data)


def decode_view(data: bytes) -> View:
    return _view.decode(data)
