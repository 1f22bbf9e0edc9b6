"""The entry of the child processes: `python -m sidecar.app.process control|worker ...`.

The supervisor execs it; people use `pd-sidecar`.
"""

import argparse
import asyncio
import gc
import logging
import os
import resource
import sys
from pathlib import Path

import msgspec
import uvloop

from sidecar.config import Config
from sidecar.edge.run_dir import RunDir
from sidecar.errors import PdSidecarError, StartError

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
GC_THRESHOLD = 10_000
"""containers, more than went, until the youngest are looked through"""
GRPC_LOG = "grpc._cython.cygrpc"


def main() -> int:
    parser = argparse.ArgumentParser(prog="sidecar.app.process")
    parser.add_argument("role", choices=("control", "worker"))
    parser.add_argument("--index", type=int, default=0)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--lifeline", type=int, required=True)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format=LOG_FORMAT, stream=sys.stderr)
    logging.getLogger(GRPC_LOG).addFilter(is_worth_a_line)
    raise_file_limit()
    # Sockets and state files get mode 0660: Envoy may run as another user of our group.
    os.umask(0o117)
    run_dir = RunDir(arguments.run_dir)
    try:
        config = _config(run_dir)
        if arguments.role == "control":
            from sidecar.app.control import run_control

            tune_gc()
            uvloop.run(run_control(config, run_dir, arguments.lifeline))
        else:
            from sidecar.app.worker import run_worker

            tune_gc()
            uvloop.run(run_worker(arguments.index, config, run_dir, arguments.lifeline))
    except PdSidecarError as error:
        logging.getLogger("sidecar").error("%s: %s", arguments.role, error)
        return 1
    return 0


def _config(run_dir: RunDir) -> Config:
    """As the supervisor wrote it; raises StartError when it is not there or not whole."""
    try:
        return msgspec.json.decode(run_dir.config.read_bytes(), type=Config)
    except (OSError, msgspec.MsgspecError) as error:
        raise StartError(f"{run_dir.config}: {error}") from None


def is_worth_a_line(record: logging.LogRecord) -> bool:
    """gRPC logs a call that our own end cancels as an error with its traceback: it is neither."""
    return not (record.exc_info and record.exc_info[0] is asyncio.CancelledError)


def tune_gc() -> None:
    """What a request makes goes with its last reference (tests/edge/test_garbage.py), so that to
    look for more is for the rest of us: seldom, and not among what the imports made. At Python's
    own thresholds it took a tenth of a worker's time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, 20, 20)


def raise_file_limit() -> None:
    """Open files: every held request is a connection, so take what the kernel gives."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    sys.exit(main())
