"""The messages at an engine's notify ports, as vLLM 0.33 reads them (protocol c and e).

Pure. One frame from a DEALER: a MessagePack map with `type`, or a bare transfer id as UTF-8 text,
as older versions send it. Whatever vLLM's listener would raise on is a NotifyKiller: the thread of
that rank ends with it (moriio_engine.py, `async_wait_reqid` and `_handle_message`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from sidecar.sim.options import Role

STRUCTURED_SINCE = (0, 33)
"""`release` as a map, and `write_failed`: an older engine raises on them (protocol e)"""


class NotifyKiller(Exception):
    """A message that ends the listener of the rank that got it; `kind` is for the counts."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Told:
    """What a simulated decode engine says beside vLLM's keys: the sizes by which it addressed.

    vLLM ignores keys that it does not know. Here a wrong size is seen at once, where vLLM would
    write to wrong places.
    """

    dp_size: int
    tp_size: int
    prefill_tp_size: int
    """0 = not told."""


@dataclass(frozen=True, slots=True)
class RemoteBlocks:
    """To prefill, WRITE: a decode rank's blocks that wait for a transfer."""

    transfer_id: str
    decode_rank: int
    told: Told | None


@dataclass(frozen=True, slots=True)
class Release:
    """To prefill: nobody will fetch this transfer, or one consumer rank has."""

    transfer_id: str
    consumer_tp_size: int


@dataclass(frozen=True, slots=True)
class WriteDone:
    """To decode, WRITE: a prefill rank has written its part."""

    transfer_id: str


@dataclass(frozen=True, slots=True)
class WriteFailed:
    """To decode, WRITE: nothing will be written any more."""

    transfer_id: str


NotifyMessage = RemoteBlocks | Release | WriteDone | WriteFailed


def read_notify(frames: Sequence[bytes], role: Role, release: tuple[int, int]) -> NotifyMessage:
    """The message in what a ROUTER received, for an engine of that vLLM release.

    The role decides what a bare transfer id means. Raises NotifyKiller.
    """
    if len(frames) != 2:
        raise NotifyKiller("notify_frames")
    try:
        data = msgspec.msgpack.decode(frames[1])
    except (ValueError, RecursionError, TypeError):
        data = None
    return _read_map(data, release) if isinstance(data, dict) else _read_text(frames[1], role)


def _read_text(raw: bytes, role: Role) -> Release | WriteDone:
    try:
        transfer_id = raw.decode()
    except UnicodeDecodeError:
        transfer_id = ""
    if not transfer_id:
        raise NotifyKiller("notify_unreadable")
    return Release(transfer_id, 1) if role == "prefill" else WriteDone(transfer_id)


def _read_map(data: Mapping[Any, Any], release: tuple[int, int]) -> NotifyMessage:
    kind = data.get("type")
    if kind is None and "req_id" in data:
        kind = "remote_blocks"
    if kind not in ("remote_blocks", "release", "write_done", "write_failed"):
        raise NotifyKiller("notify_unknown_type")
    if kind in ("release", "write_failed") and release < STRUCTURED_SINCE:
        raise NotifyKiller("notify_too_old")
    transfer_id = data.get("transfer_id")
    if not isinstance(transfer_id, str):
        raise NotifyKiller("notify_no_transfer_id")
    match kind:
        case "remote_blocks":
            return _read_blocks(transfer_id, data)
        case "release":
            consumer_tp_size = data.get("consumer_tp_size", 1)
            if type(consumer_tp_size) is not int or consumer_tp_size < 1:
                raise NotifyKiller("notify_bad_tp_size")
            return Release(transfer_id, consumer_tp_size)
        case "write_done":
            return WriteDone(transfer_id)
    return WriteFailed(transfer_id)


def _read_blocks(transfer_id: str, data: Mapping[Any, Any]) -> RemoteBlocks:
    blocks, rank = data.get("block_notify_list", []), data.get("decode_rank", 0)
    if not isinstance(blocks, list) or not blocks:
        raise NotifyKiller("notify_empty_blocks")
    if type(rank) is not int or rank < 0:
        raise NotifyKiller("notify_bad_rank")
    told = data.get("sim")
    return RemoteBlocks(transfer_id, rank, msgspec.convert(told, Told) if told else None)


def remote_blocks(
    request_id: str, transfer_id: str, block_ids: Sequence[int], decode_rank: int, told: Told
) -> bytes:
    """The bytes of a decode rank's notice: vLLM's keys, and `sim`."""
    return msgspec.msgpack.encode(
        {
            "req_id": request_id,
            "transfer_id": transfer_id,
            "block_notify_list": list(block_ids),
            "decode_rank": decode_rank,
            "type": "remote_blocks",
            "sim": told,
        }
    )


def write_done(transfer_id: str) -> bytes:
    """The bytes by which prefill ends a transfer."""
    return msgspec.msgpack.encode({"type": "write_done", "transfer_id": transfer_id})


def write_failed(transfer_id: str) -> bytes:
    """The bytes by which prefill gives a transfer up; only for release 0.33 and later."""
    return msgspec.msgpack.encode({"type": "write_failed", "transfer_id": transfer_id})
