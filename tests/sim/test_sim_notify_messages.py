"""What a notify listener understands, and what ends it (protocol e)."""

from typing import Any

import msgspec
import pytest

from sidecar.sim.notify_messages import (
    NotifyKiller,
    Release,
    RemoteBlocks,
    Told,
    WriteDone,
    WriteFailed,
    read_notify,
    remote_blocks,
    write_done,
    write_failed,
)

BLOCKS = {"req_id": "r", "transfer_id": "T", "block_notify_list": [1], "decode_rank": 2}


def _read(message: Any, role: str = "prefill", release: tuple[int, int] = (0, 33)) -> Any:
    raw = message if isinstance(message, bytes) else msgspec.msgpack.encode(message)
    return read_notify([b"id", raw], role, release)


@pytest.mark.parametrize(
    ("message", "role", "read"),
    [
        (
            {"type": "release", "transfer_id": "T", "consumer_tp_size": 2},
            "prefill",
            Release("T", 2),
        ),
        ({"type": "release", "transfer_id": "T"}, "prefill", Release("T", 1)),
        (b"tx-1", "prefill", Release("tx-1", 1)),
        (b"tx-1", "decode", WriteDone("tx-1")),
        (b"T", "prefill", Release("T", 1)),
        ({"type": "remote_blocks", **BLOCKS}, "prefill", RemoteBlocks("T", 2, None)),
        (BLOCKS, "prefill", RemoteBlocks("T", 2, None)),
        ({"type": "write_done", "transfer_id": "T"}, "decode", WriteDone("T")),
        ({"type": "write_failed", "transfer_id": "T"}, "decode", WriteFailed("T")),
    ],
)
def test_vllms_messages_are_read(message, role, read) -> None:
    """Maps by their type, anything else that is text as a transfer id, by the engine's role."""
    assert _read(message, role) == read


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        (b"", "notify_unreadable"),
        (b"\xff\xfe", "notify_unreadable"),
        ({"type": "ping", "transfer_id": "T"}, "notify_unknown_type"),
        ({"transfer_id": "T"}, "notify_unknown_type"),
        ({"type": "release"}, "notify_no_transfer_id"),
        ({"type": "write_failed", "transfer_id": 7}, "notify_no_transfer_id"),
        ({"type": "release", "transfer_id": "T", "consumer_tp_size": 0}, "notify_bad_tp_size"),
        ({"type": "release", "transfer_id": "T", "consumer_tp_size": "1"}, "notify_bad_tp_size"),
        ({"type": "release", "transfer_id": "T", "consumer_tp_size": True}, "notify_bad_tp_size"),
        ({"type": "remote_blocks", "transfer_id": "T"}, "notify_empty_blocks"),
        ({"type": "remote_blocks", **BLOCKS, "block_notify_list": []}, "notify_empty_blocks"),
        ({"type": "remote_blocks", **BLOCKS, "decode_rank": "x"}, "notify_bad_rank"),
    ],
)
def test_what_cannot_be_handled_is_a_killer(message, kind) -> None:
    """Each has its own kind in the counts."""
    with pytest.raises(NotifyKiller) as caught:
        _read(message)
    assert caught.value.kind == kind


@pytest.mark.parametrize("frames", [[b"id"], [b"id", b"", b"tx-1"]])
def test_a_message_is_one_frame(frames) -> None:
    """More or fewer cannot be unpacked."""
    with pytest.raises(NotifyKiller, match="notify_frames"):
        read_notify(frames, "prefill", (0, 33))


@pytest.mark.parametrize("kind", ["release", "write_failed"])
def test_before_0_33_the_new_messages_kill(kind) -> None:
    """An older engine raises on a type that it does not know; a bare id it understands."""
    with pytest.raises(NotifyKiller, match="notify_too_old"):
        _read({"type": kind, "transfer_id": "T"}, "decode", (0, 32))
    assert _read(b"T", "prefill", (0, 32)) == Release("T", 1)


def test_what_the_simulator_sends_it_reads() -> None:
    """The keys are vLLM's, so a real engine would read it too."""
    told = Told(dp_size=2, tp_size=1, prefill_tp_size=0)
    raw = remote_blocks("r", "T", range(3), 1, told)
    assert msgspec.msgpack.decode(raw)["block_notify_list"] == [0, 1, 2]
    assert _read(raw) == RemoteBlocks("T", 1, told)
    assert _read(write_done("T"), "decode") == WriteDone("T")
    assert _read(write_failed("T"), "decode") == WriteFailed("T")
