"""The simulator's own messages between engines, in place of RDMA and MoRI's handshake.

MessagePack maps tagged by `type`; `call` joins an answer to its question on one connection.
They carry what the real connector's messages carry (protocol.md c, "How ranks meet"), not its
bytes: nothing outside the simulator may speak to these ports.
"""

import msgspec


class Message(msgspec.Struct, frozen=True, tag_field="type"):
    """Anything on a link."""

    call: int


class Fetch(Message, frozen=True, tag="fetch"):
    """READ: decode asks a prefill rank for a transfer's blocks."""

    transfer_id: str
    engine_id: str | None
    block_ids: list[int]
    tp_size: int
    """The prefill TP size that the decode leg was told; 0 = not told."""


class RemoteBlocks(Message, frozen=True, tag="remote_blocks"):
    """WRITE: a decode rank tells a prefill rank which of its blocks wait for a transfer."""

    transfer_id: str
    decode_rank: int
    dp_size: int
    tp_size: int
    prefill_tp_size: int
    """What the decode leg was told of the prefill instance; 0 = not told."""
    block_ids: list[int]


class Push(Message, frozen=True, tag="push"):
    """WRITE: a prefill rank writes the blocks of a transfer to a decode rank."""

    transfer_id: str
    decode_rank: int
    contents: list[bytes]


class WriteFailed(Message, frozen=True, tag="write_failed"):
    """WRITE: prefill gave a transfer up; decode must not wait any longer."""

    transfer_id: str


class Release(Message, frozen=True, tag="release"):
    """A prefill rank may free a transfer's blocks."""

    transfer_id: str


class Reply(Message, frozen=True, tag="reply"):
    """The answer to each message: `error` is None or a kind out of a closed set."""

    error: str | None = None
    contents: list[bytes] = []


AnyMessage = Fetch | RemoteBlocks | Push | WriteFailed | Release | Reply
