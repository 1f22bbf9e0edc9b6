"""The walks' cursors in memory that all workers share, under a lock the kernel frees with its
holder.

A table of fixed-size records in a mapped file, found by the CRC of the group's name (open
addressing). The lock is `flock` on a file that each worker opens for itself: measured 3 us, and a
holder that dies lets go. A worker waits at most 50 ms for it, then picks without and counts that:
the walk may then serve a slot twice, which is better than a request that waits for a stopped
process. It waits so long once: until the lock is free again its other picks only try.
"""

import contextlib
import fcntl
import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep
from zlib import crc32

from sidecar.errors import StartError
from sidecar.routing.slots import Cursor, Key

WAIT_S = 0.05
RETRY_S = 0.0002
RECORDS = 1024
"""groups that can be told apart; beyond it two may share a cursor, which only skews a walk"""
_RECORD = struct.Struct("<IIQiiii")
"""name's CRC (0: free), fingerprint, served, prefill key, decode key (rank -1: none)"""
_SIZE = 64
PROBES = 16
"""records looked at for a group before it shares one"""


class SharedCursors:
    """Implements `routing.slots.Cursors`. `get` and `put` belong inside `held()`."""

    def __init__(self, path: Path) -> None:
        self.unlocked_picks = 0
        self._is_patient = True
        """whether a held lock is worth waiting for: not from a wait in vain to the next success"""
        self._lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o660)
        try:
            # Not a hole in the file: a write to one on a full disk is a SIGBUS at some later pick.
            os.posix_fallocate(self._lock, 0, RECORDS * _SIZE)
        except OSError as error:
            os.close(self._lock)
            raise StartError(f"{path}: {error.strerror}") from None
        self._table = mmap.mmap(self._lock, RECORDS * _SIZE)

    def __repr__(self) -> str:
        return f"<SharedCursors unlocked_picks={self.unlocked_picks}>"

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """The lock, around one whole pick."""
        has_lock = self._acquire()
        if not has_lock:
            self.unlocked_picks += 1
        try:
            yield
        finally:
            if has_lock:
                fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _acquire(self) -> bool:
        deadline: float | None = None
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                now = monotonic()
                deadline = deadline or now + (WAIT_S if self._is_patient else 0.0)
                if now >= deadline:
                    self._is_patient = False
                    return False
                # Blocks this worker's loop, by intent: a pick takes microseconds.
                sleep(RETRY_S)
            else:
                self._is_patient = True
                return True

    def get(self, group: str) -> Cursor:
        at, is_new = self._find(group)
        if is_new:
            return Cursor()
        _, fingerprint, served, *keys = _RECORD.unpack_from(self._table, at)
        return Cursor(_key(*keys[:2]), _key(*keys[2:]), served, fingerprint)

    def put(self, group: str, cursor: Cursor) -> None:
        at, _ = self._find(group)
        prefill, decode = cursor.prefill or (-1, 0), cursor.decode or (-1, 0)
        _RECORD.pack_into(
            self._table, at, _crc(group), cursor.fingerprint, cursor.served, *prefill, *decode
        )

    def _find(self, group: str) -> tuple[int, bool]:
        """Offset of the group's record, and whether it is still free.

        Where the table is full it is another group's: both walk on from one cursor. As a new one it
        would begin at the first slot each time, and that slot would get all requests."""
        crc = _crc(group)
        for step in range(PROBES):
            at = (crc + step) % RECORDS * _SIZE
            (found,) = struct.unpack_from("<I", self._table, at)
            if found in (crc, 0):
                return at, found == 0
        return crc % RECORDS * _SIZE, False

    def close(self) -> None:
        self._table.close()
        os.close(self._lock)


def _crc(group: str) -> int:
    return crc32(group.encode()) or 1


def _key(rank: int, ordinal: int) -> Key | None:
    return None if rank < 0 else (rank, ordinal)
