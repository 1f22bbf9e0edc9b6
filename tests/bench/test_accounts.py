"""CPU time and memory of processes: read for what they are."""

import mmap
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tests.bench.cpu_account import command_of, cpu_seconds, descendants, read_account, used_since
from tests.bench.memory_account import Memory, parse_rollup, read_memory

BUSY = """
import subprocess, sys, threading, time
def burn(seconds):
    start = time.thread_time()
    while time.thread_time() - start < seconds:
        pass
thread = threading.Thread(target=burn, args=(0.2,))
thread.start(); thread.join()
burn(0.2)
child = subprocess.Popen(["sleep", "60"])
print(child.pid, time.process_time(), flush=True)
sys.stdin.read()
child.kill(); child.wait()
"""


@pytest.fixture
def busy() -> Iterator[tuple[int, int, float]]:
    """A process that has burnt 0.2 s in a thread that is over and 0.2 s itself, and now waits: its
    pid, that of its child, and the CPU seconds that it says it has used."""
    process = subprocess.Popen(
        [sys.executable, "-c", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    child, used = process.stdout.readline().split()
    yield process.pid, int(child), float(used)
    process.stdin.close()
    process.wait(10)
    process.stdout.close()


def test_cpu_is_what_the_process_itself_counts(busy: tuple[int, int, float]) -> None:
    """The time of its ended thread too, and no more when it only waits."""
    pid, _, used = busy
    assert used >= 0.4
    assert used <= cpu_seconds(pid) < used + 0.1
    before = read_account({pid: "busy"})
    time.sleep(0.1)
    assert used_since(before, read_account({pid: "busy"}))["busy"] < 0.05


def test_processes_of_one_name_are_added(busy: tuple[int, int, float]) -> None:
    """Parent and child as one."""
    pid, child, used = busy
    account = read_account({pid: "tree", child: "tree"})
    assert list(account) == ["tree"]
    assert account["tree"] >= used


def test_a_process_that_is_gone_is_an_error() -> None:
    """Its time would be missing."""
    process = subprocess.Popen(["true"])
    process.wait()
    with pytest.raises(OSError, match=r"\[Errno"):
        cpu_seconds(process.pid)


def test_children_are_found(busy: tuple[int, int, float]) -> None:
    """The process, then what came from it; its command too."""
    pid, child, _ = busy
    assert descendants(pid) == [pid, child]
    assert command_of(child) == ["sleep", "60"]


def test_memory_is_read_by_names() -> None:
    """The two fields among all others."""
    text = (
        "55d0-7ffd ---p 00000000 00:00 0 [rollup]\nRss:  3072 kB\nPss:  1024 kB\nPss_Anon: 8 kB\n"
    )
    assert parse_rollup(text) == Memory(1024, 3072)


def test_memory_that_a_process_takes_is_seen() -> None:
    """20 MiB more, written to; mapped anew, as an allocator may have so much left."""
    before = read_memory([os.getpid()])
    with mmap.mmap(-1, 20 * 2**20) as block:
        block.write(bytes(len(block)))
        grown = read_memory([os.getpid()]).pss_kib - before.pss_kib
    assert 19 * 1024 < grown < 44 * 1024
