"""What one worker's decode engines wait for, kept in a file so that it outlives the worker.

Shared memory (a mapped file in the run directory): a put costs some microseconds, and what is put
is there after a kill -9. Knows bytes only. Invariant: an entry is either whole or absent, because
its length is written last and cleared first.
"""

import mmap
import os
import struct
from pathlib import Path

from sidecar.errors import StartError

CELLS = 16384
"""entries at once; for more there is no room, and the caller is told"""
CELL_BYTES = 256
_LENGTH = struct.Struct("<H")
_ROOM = CELL_BYTES - _LENGTH.size


class TransferJournal:
    def __init__(self, path: Path, cells: int = CELLS) -> None:
        """Open or make it; what an earlier worker left is in `leftovers`, by cell. Raises
        StartError."""
        self._path = path
        self._cells = cells
        size = cells * CELL_BYTES
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o660)
        except OSError as error:
            raise StartError(f"{path}: {error.strerror}") from None
        try:
            # Not a hole in the file: a write to one on a full disk is a SIGBUS at some later put.
            os.posix_fallocate(descriptor, 0, size)
            self._map = mmap.mmap(descriptor, size)
        except OSError as error:
            raise StartError(f"{path}: {error.strerror}") from None
        finally:
            os.close(descriptor)
        found = ((cell, self._read(cell)) for cell in range(cells))
        self.leftovers = {cell: data for cell, data in found if data is not None}
        self._free = [cell for cell in reversed(range(cells)) if cell not in self.leftovers]

    def __repr__(self) -> str:
        return f"<TransferJournal {self._cells - len(self._free)} of {self._cells}>"

    def take_over(self, other: Path) -> None:
        """What a worker left that will not be started again; its file goes."""
        journal = TransferJournal(other, self._cells)
        for data in journal.leftovers.values():
            cell = self.put(data)
            if cell is not None:
                self.leftovers[cell] = data
        journal.close()
        other.unlink()

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

    def clear(self, cell: int) -> None:
        """Forget an entry, one's own or a leftover."""
        self._set_length(cell, 0)
        self._free.append(cell)

    def close(self) -> None:
        self._map.close()

    def _write(self, cell: int, data: bytes) -> None:
        start = cell * CELL_BYTES + _LENGTH.size
        self._set_length(cell, 0)
        self._map[start : start + len(data)] = data
        self._set_length(cell, len(data))

    def _set_length(self, cell: int, length: int) -> None:
        _LENGTH.pack_into(self._map, cell * CELL_BYTES, length)

    def _read(self, cell: int) -> bytes | None:
        start = cell * CELL_BYTES + _LENGTH.size
        (length,) = _LENGTH.unpack_from(self._map, cell * CELL_BYTES)
        return self._map[start : start + length] if 0 < length <= _ROOM else None
