"""Start a program that outlives us. Run as a script: `detach.py LOG PROGRAM [ARGUMENT...]`.

Prints the program's pid and ends. The program is exec'd only after this process has gone: the
Envoy of the wheel asks the kernel for SIGTERM when its parent thread dies, and asks too early it
would die with us. A script of its own, as forking a process that may have threads is not safe.
Imports the standard library's smallest part alone, for it is run with `-I -S`.
"""

import os
import resource
import sys
import time


def main(log: str, command: list[str]) -> None:
    os.setsid()  # a Ctrl-C at our terminal is not for it
    middle = os.getpid()
    child = os.fork()
    if child:
        print(child, flush=True)
        os._exit(0)
    null = os.open(os.devnull, os.O_RDONLY)
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)
    os.dup2(null, 0)
    # Never a pipe: who reads it may die before the program does.
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.closerange(3, 256)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    while os.getppid() == middle:
        time.sleep(0.001)
    try:
        os.execv(command[0], command)
    except OSError as error:
        print(f"cannot run {command[0]}: {error}", file=sys.stderr, flush=True)
        os._exit(127)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
