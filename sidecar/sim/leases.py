"""The KV blocks that one NIXL prefill rank keeps for decode engines, each request's under a lease.

Pure: time is an argument. Invariant: a request's blocks leave by exactly one of end and expire.
Reading looks at block ids alone, as a remote read of memory does: whose they are, and whether they
are still anybody's, nobody checks.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from os import urandom

MOST_REMEMBERED = 100_000
FREE_BLOCK_BYTES = 16


@dataclass(slots=True)
class Lease:
    """One request's blocks; `expires_at` is on the caller's clock, seconds."""

    request_id: str
    block_ids: tuple[int, ...]
    contents: tuple[bytes, ...] = field(repr=False)
    expires_at: float


class Leases:
    """One rank's, by request id."""

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._held: dict[str, Lease] = {}
        self._blocks: dict[int, bytes] = {}
        self._expired: OrderedDict[str, None] = OrderedDict()
        self._next_block = 1

    @property
    def requests(self) -> int:
        """Requests whose blocks are held now."""
        return len(self._held)

    @property
    def blocks(self) -> int:
        """Blocks held now."""
        return len(self._blocks)

    def hold(self, request_id: str, contents: Sequence[bytes], now: float) -> Lease:
        """Keep a request's blocks, under new ids: none ever comes again in one engine."""
        first, self._next_block = self._next_block, self._next_block + len(contents)
        ids = tuple(range(first, self._next_block))
        lease = Lease(request_id, ids, tuple(contents), now + self._lease_s)
        self._held[request_id] = lease
        self._blocks.update(zip(ids, contents, strict=True))
        return lease

    def read(self, block_ids: Sequence[int]) -> list[bytes]:
        """What lies in these blocks. In one that is free: something else each time, where a real
        engine may still have the old bytes, so that it shows."""
        return [self._blocks.get(one) or urandom(FREE_BLOCK_BYTES) for one in block_ids]

    def end(self, request_id: str) -> Lease | None:
        """Decode has read the blocks, or does not want them."""
        lease = self._held.pop(request_id, None)
        for one in lease.block_ids if lease else ():
            del self._blocks[one]
        return lease

    def renew(self, request_id: str, now: float) -> bool:
        """A heartbeat: two thirds of a lease from now on at least; False: nobody's blocks."""
        lease = self._held.get(request_id)
        if lease is None:
            return False
        lease.expires_at = max(lease.expires_at, now + self._lease_s * 2 / 3)
        return True

    def expire(self, now: float) -> list[Lease]:
        """Give up what nobody renewed, and return it."""
        late = [lease for lease in self._held.values() if lease.expires_at <= now]
        for lease in late:
            self.end(lease.request_id)
            self._expired[lease.request_id] = None
            if len(self._expired) > MOST_REMEMBERED:
                self._expired.popitem(last=False)
        return late

    def has_expired(self, request_id: str) -> bool:
        """Whether its blocks were given up so."""
        return request_id in self._expired
