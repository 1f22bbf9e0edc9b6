"""The simulator's own messages between engines, in place of RDMA and MoRI's handshake.

MessagePack maps tagged by `type`, at the handshake ports; `call` joins an answer to its question on
one connection. Of MoRI-IO they carry the bytes of blocks alone: who waits for what is told at the
notify ports, in vLLM's own words. NIXL has no such ports: its notifications are here too. Nothing
outside the simulator may speak to these ports.
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


class Push(Message, frozen=True, tag="push"):
    """WRITE: a prefill rank writes the blocks of a transfer to a decode rank."""

    transfer_id: str
    decode_rank: int
    contents: list[bytes]


class Hello(Message, frozen=True, tag="hello"):
    """NIXL: a decode rank asks a prefill rank whether it is the engine that it looks for."""

    engine_id: str | None
    compatibility: str
    """What both must have in common; in place of vLLM's hash."""


class Read(Message, frozen=True, tag="read"):
    """NIXL: a decode rank reads blocks; the request whose blocks they were is over with it."""

    engine_id: str
    request_id: str
    block_ids: list[int]


class Freed(Message, frozen=True, tag="freed"):
    """NIXL: a decode rank will not read this request's blocks."""

    engine_id: str
    request_id: str


class Beat(Message, frozen=True, tag="beat"):
    """NIXL: these requests' blocks are still wanted."""

    engine_id: str
    request_ids: list[str]


class Reply(Message, frozen=True, tag="reply"):
    """The answer to each message: `error` is None or a kind out of a closed set."""

    error: str | None = None
    contents: list[bytes] = []


AnyMessage = Fetch | Push | Hello | Read | Freed | Beat | Reply
