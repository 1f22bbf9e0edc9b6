"""stdin, stdout and stderr as they may come: closed, a pipe nobody reads, a full disk."""

import os
import sys


def ensure_open() -> None:
    """Put /dev/null where a standard stream is closed. Else the next socket gets its number, and a
    child process its end: uvloop aborts when it closes a descriptor below 3."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)


def say(text: str, end: str = "\n") -> None:
    """Print for who may be reading; that nobody is must not end a service."""
    try:
        print(text, end=end, flush=True)
    except OSError:
        # What is still buffered would fail again when the interpreter ends.
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
