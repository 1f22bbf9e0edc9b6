"""The cursors that all workers share: one walk over processes, and a lock that nobody can keep."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.edge.shared_cursors import RECORDS, WAIT_S, SharedCursors
from sidecar.errors import StartError
from sidecar.routing.slots import Cursor

HOLD = """
import sys
from pathlib import Path
from sidecar.edge.shared_cursors import SharedCursors
cursors = SharedCursors(Path(sys.argv[1]))
with cursors.held():
    print("held", flush=True)
    sys.stdin.read()
"""

COUNT = """
import sys
from pathlib import Path
from sidecar.edge.shared_cursors import SharedCursors
from sidecar.routing.slots import Cursor
cursors = SharedCursors(Path(sys.argv[1]))
for _ in range(int(sys.argv[2])):
    with cursors.held():
        cursors.put("g", Cursor(served=cursors.get("g").served + 1))
print(cursors.unlocked_picks)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cursors"


@pytest.fixture
def holder(path: Path) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Starts processes that hold the lock, and ends them with the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def pick(cursors: SharedCursors) -> float:
    """One pick; how long it waited."""
    started = time.monotonic()
    with cursors.held():
        pass
    return time.monotonic() - started


keys = st.none() | st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1))
cursors_of = st.builds(
    Cursor,
    prefill=keys,
    decode=keys,
    served=st.integers(0, 2**64 - 1),
    fingerprint=st.integers(0, 2**32 - 1),
)


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), cursors_of, max_size=30))
def test_what_was_put_is_got(
    tmp_path_factory: pytest.TempPathFactory, table: dict[str, Cursor]
) -> None:
    """By another opener of the same file too; a group never put has no cursor."""
    path = tmp_path_factory.mktemp("c") / "cursors"
    cursors = SharedCursors(path)
    for group, cursor in table.items():
        assert cursors.get(group) == Cursor()
        cursors.put(group, cursor)
    again = SharedCursors(path)
    assert {group: again.get(group) for group in table} == table
    cursors.close()
    again.close()


def test_the_table_survives_every_process(path: Path) -> None:
    """A walk goes on after a restart of all workers."""
    cursors = SharedCursors(path)
    cursors.put("g", Cursor((1, 2), (3, 4), 5, 6))
    cursors.close()
    again = SharedCursors(path)
    assert again.get("g") == Cursor((1, 2), (3, 4), 5, 6)
    again.close()


def test_more_groups_than_records_only_skew_a_walk(path: Path) -> None:
    """When the table is full nothing fails, and groups that share a cursor walk on all the same,
    however their requests alternate."""
    cursors = SharedCursors(path)
    groups = [f"g{i}" for i in range(2 * RECORDS)]
    for lap in range(3):
        for group in groups:
            served = cursors.get(group).served
            assert served >= lap, group
            cursors.put(group, Cursor(served=served + 1))
            assert cursors.get(group).served == served + 1
    cursors.close()


def test_two_processes_lose_no_step(path: Path) -> None:
    """Read, step and write are one under the lock: the count is exact."""
    command = [sys.executable, "-c", COUNT, str(path), "2000"]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
    outputs = [process.communicate(timeout=30)[0] for process in processes]
    cursors = SharedCursors(path)
    # A process that was off the processor for 50 ms with the lock costs the other a pick without.
    assert 4000 - cursors.get("g").served <= sum(int(o) for o in outputs)
    cursors.close()


def test_a_holder_that_dies_lets_go(
    path: Path, holder: Callable[[], subprocess.Popen[bytes]]
) -> None:
    """SIGKILL in the middle of a pick: the kernel frees the lock with the process."""
    cursors = SharedCursors(path)
    process = holder()
    process.kill()
    process.wait()
    assert pick(cursors) < WAIT_S
    assert cursors.unlocked_picks == 0
    cursors.close()


def test_a_stopped_holder_costs_one_wait_and_is_counted(
    path: Path, holder: Callable[[], subprocess.Popen[bytes]]
) -> None:
    """About 50 ms for the first pick, nothing for the next; once it is gone the lock is used."""
    cursors = SharedCursors(path)
    process = holder()
    process.send_signal(signal.SIGSTOP)
    assert WAIT_S <= pick(cursors) < WAIT_S + 0.1
    assert cursors.unlocked_picks == 1
    assert sum(pick(cursors) for _ in range(20)) < WAIT_S
    assert cursors.unlocked_picks == 21
    process.kill()
    process.wait()
    pick(cursors)
    assert cursors.unlocked_picks == 21
    cursors.close()
    assert "21" in repr(cursors)


def test_a_file_that_cannot_be_had_whole_is_said_at_the_start() -> None:
    """A hole in it would be a SIGBUS at some later pick, when the disk is full."""
    with pytest.raises(StartError, match="/dev/full"):
        SharedCursors(Path("/dev/full"))
