"""Engines, targets and heartbeats of a run, started together and ended together."""

import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tests.bench.cpu_account import read_account
from tests.bench.crowd_process import CrowdError
from tests.bench.heartbeats import Heartbeats
from tests.bench.nginx_engines import NginxEngines, Registration
from tests.bench.samples import Samples
from tests.bench.stream_engine_process import StreamEngine
from tests.bench.targets.direct import Direct
from tests.bench.targets.envoy import PlainEnvoy
from tests.bench.targets.example import Example
from tests.bench.targets.ours import Ours
from tests.bench.targets.target import Target
from tests.bench.targets.vllm_router import VllmRouter
from tests.bench.worker_names import NUMBER_OF
from tests.bench.wrk import WrkError

NAMES = ("ours", "vllm-router", "example", "envoy", "direct")
QUIET_SHARE = 0.05
"""of a core: a target that uses less has nothing left to do"""
SETTLE_LIMIT_S = 5.0
SETTLE_POLL_S = 0.1


class DecodeEngines(Protocol):
    """`NginxEngines` or `StreamEngine`."""

    registrations: list[Registration]

    @property
    def addresses(self) -> list[str]: ...

    def count(self) -> int: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Fleet:
    """Everything that runs. `targets` are ready."""

    folder: Path
    prefill: NginxEngines
    decode: DecodeEngines
    targets: Sequence[Target]

    def in_turn(self, round_number: int) -> list[Target]:
        """All targets, each round another one first."""
        first = round_number % len(self.targets)
        return [*self.targets[first:], *self.targets[:first]]


@contextlib.contextmanager
def whole_fleet(names: Sequence[str]) -> Iterator[Fleet]:
    """With decode engines that answer at once and whole."""
    with _fleet(names, lambda folder: NginxEngines("D", folder)) as fleet:
        yield fleet


@contextlib.contextmanager
def stream_fleet(names: Sequence[str]) -> Iterator[Fleet]:
    """With a decode engine that streams (and answers whole those who do not ask for a stream)."""
    with _fleet(names, StreamEngine) as fleet:
        yield fleet


@contextlib.contextmanager
def _fleet(names: Sequence[str], make_decode: Callable[[Path], DecodeEngines]) -> Iterator[Fleet]:
    folder = Path(tempfile.mkdtemp(prefix="bench-"))
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        prefill = NginxEngines("P", folder)
        stack.callback(prefill.close)
        decode = make_decode(folder)
        stack.callback(decode.close)
        targets = []
        for name in names:
            target = make_target(name, decode.addresses, folder)
            stack.callback(target.close)
            targets.append(target)
        routers = [one.registration for one in targets if one.registration is not None]
        heartbeats = Heartbeats([*prefill.registrations, *decode.registrations], routers)
        stack.callback(heartbeats.close)
        for target in targets:
            target.wait_ready()
        yield Fleet(folder, prefill, decode, targets)


def make_target(name: str, decode_addresses: list[str], folder: Path) -> Target:
    match name:
        case "ours":
            return Ours(folder)
        case _ if name in NUMBER_OF:
            return Ours(folder, NUMBER_OF[name])
        case "vllm-router":
            return VllmRouter(folder)
        case "example":
            return Example(folder)
        case "envoy":
            return PlainEnvoy(decode_addresses, folder)
        case _:
            return Direct(decode_addresses[0])


@contextlib.contextmanager
def guarded(samples: Samples, target: Target, where: str) -> Iterator[None]:
    """A target or a load that breaks off is a failure of this measurement, not of the run."""
    try:
        yield
    except (OSError, CrowdError, WrkError) as error:
        samples.fail(target.name, f"{where}: {error!r}")


def settle(target: Target) -> None:
    """Until the target has done what a load left behind: the next one must not pay for it."""
    deadline = time.monotonic() + SETTLE_LIMIT_S
    while time.monotonic() < deadline:
        processes = target.processes()
        before = sum(read_account(processes).values())
        time.sleep(SETTLE_POLL_S)
        if sum(read_account(processes).values()) - before < QUIET_SHARE * SETTLE_POLL_S:
            return
