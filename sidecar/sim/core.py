"""What both sides of an engine share: identity, pace, hold gate, life and death."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import zmq
from aiohttp import web

from sidecar.sim.api_error import EngineDead
from sidecar.sim.counters import Counters, Leg
from sidecar.sim.faults import Faults
from sidecar.sim.link import Links
from sidecar.sim.models import Models
from sidecar.sim.notifier import Notifier
from sidecar.sim.options import SimOptions
from sidecar.sim.traffic import Traffic

KeptAs = Leg | Literal["single"]
"""As what a request is kept: a leg, or a request that runs no model."""
KEPT_REQUESTS = 20  # of each leg, for /sim/last
KEPT_BODY_BYTES = 4 << 20  # a larger body is kept as its length alone


@dataclass(frozen=True, slots=True)
class Received:
    """One request exactly as it arrived, for byte-identical checks."""

    method: str
    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes | None
    body_bytes: int
    rank: int


@dataclass(slots=True)
class Pace:
    """How fast tokens come; changed live at /sim/pace."""

    ttft_s: float
    tokens_per_s: float


@dataclass(slots=True)
class Health:
    """What GET /health does; changed live at /sim/health."""

    status: int = 200
    delay_s: float = 0.0
    refuse: bool = False


class HoldGate:
    """While closed, prefill legs wait here before they answer, each at most `limit_s`."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._open = asyncio.Event()
        self._open.set()
        self.limit_s = 30.0
        self.holding_now = 0

    def set(self, hold: bool, limit_s: float) -> None:
        """Close or open the gate; `limit_s` is for those that come from now on."""
        self.limit_s = limit_s
        if hold:
            self._open.clear()
        else:
            self._open.set()

    async def wait(self) -> None:
        """Return once the gate is open or the limit is over."""
        if self._open.is_set():
            return
        self.holding_now += 1
        most = max(self._counters.holding_most, self.holding_now)
        self._counters.holding_most = most
        try:
            async with asyncio.timeout(self.limit_s):
                await self._open.wait()
        except TimeoutError:
            self._counters.errors["hold_limit"] += 1
        finally:
            self.holding_now -= 1


class Core:
    """One engine's shared state, of one life.

    `engine_id` is `host:handshake_port`, as MoRI-IO names it; `lives` is the number of this life.
    """

    def __init__(
        self, options: SimOptions, host: str, handshake_port: int, notify_port: int, lives: int = 1
    ) -> None:
        self.options = options
        self.host = host
        self.handshake_port = handshake_port
        self.notify_port = notify_port
        self.lives = lives
        self.engine_id = f"{host}:{handshake_port}"
        self.counters = Counters(options.dp_size)
        self.traffic = [Traffic() for _ in range(options.dp_size)]
        self.links = Links()
        self.zmq: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.notifier = Notifier(self.zmq, self.counters)
        self.dead_notify_ranks: set[int] = set()
        self.gate = HoldGate(self.counters)
        self.pace = Pace(options.ttft_ms / 1000, options.tokens_per_s)
        self.health = Health()
        self.faults = Faults()
        self.models = Models(options.models, options.max_model_len)
        self.is_profiling = False
        self.received: dict[KeptAs, deque[Received]] = {
            "prefill": deque(maxlen=KEPT_REQUESTS),
            "decode": deque(maxlen=KEPT_REQUESTS),
            "plain": deque(maxlen=KEPT_REQUESTS),
            "single": deque(maxlen=KEPT_REQUESTS),
        }
        self.running = 0
        self.waiting = 0
        self.is_dead = False
        self.cause_of_death: str | None = None
        self.on_death: list[Callable[[], None]] = []
        self._next_rank = 0

    def pick_rank(self, pinned: int | None) -> int:
        """The data-parallel rank of a request: the pinned one, else round robin."""
        if pinned is not None:
            return pinned
        rank = self._next_rank
        self._next_rank = (rank + 1) % self.options.dp_size
        return rank

    def keep(self, request: web.Request, raw: bytes, kept_as: KeptAs, rank: int) -> None:
        """Remember a request as it arrived, for /sim/last."""
        self.received[kept_as].append(
            Received(
                method=request.method,
                path=request.raw_path,
                headers=tuple(
                    (name.decode("latin-1"), value.decode("latin-1"))
                    for name, value in request.raw_headers
                ),
                body=raw if len(raw) <= KEPT_BODY_BYTES else None,
                body_bytes=len(raw),
                rank=rank,
            )
        )

    def die(self, cause: str) -> EngineDead:
        """The engine core dies for good; returns the error that everyone gets."""
        if not self.is_dead:
            self.is_dead = True
            self.cause_of_death = cause
            self.gate.set(False, self.gate.limit_s)
            for callback in self.on_death:
                callback()
        self.counters.errors[cause] += 1
        return EngineDead()

    def is_deaf(self, rank: int) -> bool:
        """Whether a notify port of this data-parallel rank has ended."""
        if self.options.dp_size > 1:
            return rank in self.dead_notify_ranks
        return bool(self.dead_notify_ranks)

    def check_alive(self) -> None:
        """Raises EngineDead once the engine core has died."""
        if self.is_dead:
            raise EngineDead
