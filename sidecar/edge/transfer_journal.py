"""What one worker's decode engines wait for, kept in a file so that it outlives the worker.

Shared memory (a mapped file in the run directory): a put costs some microseconds, and what is put
is there after a kill -9. Knows bytes only. Invariant: an entry is either whole or absent, because
its length is written last and cleared first.
"""

import mmap
import os
import struct
from pathlib import Path

CELLS = 65536
"""entries at once; more are not kept, and the caller is told"""
CELL_BYTES = 448
_LENGTH = struct.Struct("<H")
_ROOM = CELL_BYTES - _LENGTH.size


class TransferJournal:
    """One worker's file. Cells low in the file are used first, so few pages are ever touched."""

    def __init__(self, path: Path) -> None:
        """Open or make it; what an earlier worker left is in `leftovers`, by cell."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o660)
        try:
            os.ftruncate(descriptor, CELLS * CELL_BYTES)
            self._map = mmap.mmap(descriptor, CELLS * CELL_BYTES)
        finally:
            os.close(descriptor)
        self.leftovers: dict[int, bytes] = {}
        free = []
        for cell in range(CELLS):
            data = self._read(cell)
            if data is None:
                free.append(cell)
            else:
                self.leftovers[cell] = data
        self._free = free[::-1]

    def __repr__(self) -> str:
        return f"<TransferJournal {CELLS - len(self._free)} of {CELLS}>"

    def put(self, data: bytes) -> int | None:
        """Keep `data`; returns its cell. None: there is no room for it."""
        if len(data) > _ROOM or not self._free:
            return None
        cell = self._free.pop()
        self._write(cell, data)
        return cell

    def replace(self, cell: int, data: bytes) -> None:
        """Keep `data` in place of what is there; what has no room leaves that as it is."""
        if len(data) <= _ROOM:
            self._write(cell, data)

    def _write(self, cell: int, data: bytes) -> None:
        at = cell * CELL_BYTES
        self._map[at : at + _LENGTH.size] = _LENGTH.pack(0)
        self._map[at + _LENGTH.size : at + _LENGTH.size + len(data)] = data
        self._map[at : at + _LENGTH.size] = _LENGTH.pack(len(data))

    def clear(self, cell: int) -> None:
        """Forget an entry, one's own or a leftover."""
        at = cell * CELL_BYTES
        self._map[at : at + _LENGTH.size] = _LENGTH.pack(0)
        self._free.append(cell)

    def close(self) -> None:
        self._map.close()

    def _read(self, cell: int) -> bytes | None:
        at = cell * CELL_BYTES
        (length,) = _LENGTH.unpack_from(self._map, at)
        if not 0 < length <= _ROOM:
            return None
        start = at + _LENGTH.size
        return self._map[start : start + length]
