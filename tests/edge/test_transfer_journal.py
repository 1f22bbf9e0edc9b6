"""The journal of awaited transfers: whole or absent, and there after its writer was killed."""

import subprocess
import sys
from pathlib import Path

import pytest

from sidecar.edge import transfer_journal
from sidecar.edge.transfer_journal import CELL_BYTES, TransferJournal
from sidecar.errors import StartError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "transfers.w0"


def test_what_is_put_is_left_and_what_is_cleared_is_not(path: Path) -> None:
    """Over a reopening; a leftover stays until it is cleared."""
    first = TransferJournal(path)
    assert first.leftovers == {}
    kept, cleared = first.put(b"kept"), first.put(b"cleared")
    assert kept is not None
    assert cleared is not None
    first.clear(cleared)
    first.close()
    for _ in range(2):
        again = TransferJournal(path)
        assert again.leftovers == {kept: b"kept"}
        again.close()
    again = TransferJournal(path)
    assert again.put(b"new") != kept
    again.clear(kept)
    again.close()
    assert list(TransferJournal(path).leftovers.values()) == [b"new"]


def test_an_entry_is_replaced_in_its_cell(path: Path) -> None:
    """The new one is whole; one without room leaves the old one."""
    journal = TransferJournal(path)
    cell = journal.put(b"before")
    assert cell is not None
    journal.replace(cell, b"after it")
    assert TransferJournal(path).leftovers == {cell: b"after it"}
    journal.replace(cell, b"x" * CELL_BYTES)
    assert TransferJournal(path).leftovers == {cell: b"after it"}


def test_what_a_killed_process_put_is_there(path: Path) -> None:
    """kill -9 right after the put."""
    code = (
        "import os, sys, pathlib; from sidecar.edge.transfer_journal import TransferJournal\n"
        f"TransferJournal(pathlib.Path({str(path)!r})).put(b'mine'); os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    assert list(TransferJournal(path).leftovers.values()) == [b"mine"]


def test_no_room_is_said(path: Path) -> None:
    """For too many as for too long; a cleared cell is room again."""
    journal = TransferJournal(path, cells=2)
    assert journal.put(b"x" * CELL_BYTES) is None
    cells = [journal.put(b"x" * (CELL_BYTES - 2)), journal.put(b"y")]
    assert None not in cells
    assert journal.put(b"z") is None
    assert "2 of 2" in repr(journal)
    journal.clear(cells[0])
    assert journal.put(b"z") == cells[0]


def test_a_full_disk_is_a_clear_fault_not_a_signal(path: Path) -> None:
    """A hole in a mapped file would end the worker at some later put."""
    full = Path("/dev/full")
    with pytest.raises(StartError, match=r"/dev/full: "):
        TransferJournal(full)
    TransferJournal(path)
    assert path.stat().st_blocks * 512 >= transfer_journal.CELLS * CELL_BYTES


def test_what_a_worker_left_that_is_no_more_is_taken_over(path: Path, tmp_path: Path) -> None:
    """Into the file of one that is there; the other file goes."""
    other = tmp_path / "transfers.w7"
    TransferJournal(other).put(b"theirs")
    journal = TransferJournal(path)
    journal.put(b"ours")
    journal.take_over(other)
    assert list(journal.leftovers.values()) == [b"theirs"]
    assert not other.exists()
    assert sorted(TransferJournal(path).leftovers.values()) == [b"ours", b"theirs"]


@pytest.mark.parametrize("content", [b"", b"\xff" * 4096, b"short"])
def test_a_file_of_something_else_is_no_fault(path: Path, content: bytes) -> None:
    """Lengths that cannot be are no entries."""
    path.write_bytes(content)
    journal = TransferJournal(path)
    assert journal.put(b"new") is not None
