"""The KV blocks a prefill engine holds for transfers, and who may have them.

Pure: time is an argument. Invariant: a transfer is held at most once; its blocks leave by
exactly one of fetch, push, release, abort or reap. Block ids never repeat in one engine, so a
stale or foreign list of ids cannot match by luck.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

REMEMBERED_IDS = 100_000  # vLLM remembers 4096 terminal ids; more catch more re-use


@dataclass(frozen=True, slots=True)
class PushTarget:
    """Where a WRITE prefill leg was told to push: the decode instance."""

    host: str
    handshake_port: int
    notify_port: int
    dp_size: int
    tp_size: int
    """0 = the same as this engine's."""


@dataclass(frozen=True, slots=True)
class Held:
    """The blocks of one transfer on one rank. `deadline` is on the caller's clock, seconds.

    No `block_ids`: they are free again, but a WRITE push of the contents is still queued.
    """

    transfer_id: str
    rank: int
    block_ids: tuple[int, ...]
    contents: tuple[bytes, ...] = field(repr=False)
    deadline: float
    target: PushTarget | None = None


class BlockStore:
    """Held transfers by id, oldest first."""

    def __init__(self, engine_id: str, tp_size: int) -> None:
        self._engine_id = engine_id
        self._tp_size = tp_size
        self._held: OrderedDict[str, Held] = OrderedDict()
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._next_block = 1

    @property
    def transfers(self) -> int:
        """Transfers held now."""
        return sum(1 for held in self._held.values() if held.block_ids)

    @property
    def blocks(self) -> int:
        """Blocks held now."""
        return sum(len(held.block_ids) for held in self._held.values())

    def blocks_of(self, rank: int) -> int:
        """Blocks held now on one rank."""
        return sum(len(held.block_ids) for held in self._held.values() if held.rank == rank)

    def allocate(self, count: int) -> tuple[int, ...]:
        """`count` new block ids."""
        first = self._next_block
        self._next_block += count
        return tuple(range(first, self._next_block))

    def note_use(self, transfer_id: str) -> bool:
        """Remember a transfer id; False if it was used before."""
        if transfer_id in self._seen:
            return False
        self._seen[transfer_id] = None
        if len(self._seen) > REMEMBERED_IDS:
            self._seen.popitem(last=False)
        return True

    def hold(self, held: Held) -> None:
        """Keep the blocks until they are taken; deadlines must not decrease."""
        self._held[held.transfer_id] = held

    def get(self, transfer_id: str) -> Held | None:
        """The held transfer, left where it is."""
        return self._held.get(transfer_id)

    def take(self, transfer_id: str) -> Held | None:
        """The held transfer, given up."""
        return self._held.pop(transfer_id, None)

    def check_fetch(
        self,
        rank: int,
        transfer_id: str,
        engine_id: str | None,
        block_ids: Sequence[int],
        tp_size: int,
    ) -> str | None:
        """Why a READ of these blocks from this rank is wrong, or None."""
        if engine_id != self._engine_id:
            return "wrong_engine_id"
        held = self._held.get(transfer_id)
        if held is None:
            return "unknown_transfer"
        if held.rank != rank:
            return "wrong_rank"
        if held.block_ids != tuple(block_ids):
            return "wrong_blocks"
        # Untold, decode dials base + rank * 0: right for rank 0 alone (protocol.md d).
        if tp_size != self._tp_size and (tp_size or rank):
            return "wrong_tp_size"
        return None

    def read(self, rank: int, block_ids: Sequence[int]) -> list[bytes | None]:
        """What lies in these blocks of a rank, held for whomever; None: in a free one."""
        lying = {
            one: content
            for held in self._held.values()
            if held.rank == rank
            for one, content in zip(held.block_ids, held.contents, strict=False)
        }
        return [lying.get(one) for one in block_ids]

    def reap(self, now: float) -> list[Held]:
        """Give up every transfer whose deadline has passed, and return them."""
        late: list[Held] = []
        while self._held and (first := next(iter(self._held.values()))).deadline <= now:
            late.append(self._held.pop(first.transfer_id))
        return late
