"""One prefill and one decode engine behind the router, real or simulated: what all tests here see.

The real ones are vLLM on CPUs; the simulated ones are told to be that version. Invariant: whatever
was started is ended by `close`.
"""

import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.stack import Engine, Stack, until
from tests.engines.comparison import Compared, compare
from tests.engines.counters import Counters, counters
from tests.engines.environment import Environment
from tests.engines.questions import Question
from tests.engines.tally import TALLY
from tests.engines.vllm_engine import (
    CONTEXT_TOKENS,
    HOLD_S,
    MODEL,
    RANKS,
    VllmEngine,
    Wiring,
)

VERSION = "0.32.0"
"""of the lock file's vLLM"""
SIM_HOLD_S = 6
"""as HOLD_S, of simulated engines"""
REST_S = {True: 15.0, False: 4.0}
"""Of real ones and simulated ones. Below the hold: what an engine gives up by itself is not at rest
in time."""
PROBE = {"timeout_s": 10}
"""Real ones share two cores with the requests that are compared."""
GIVEN_UP_S = HOLD_S + 10.0


@dataclass(frozen=True)
class Kind:
    """What a fleet is made of."""

    is_real: bool
    connector: str
    mode: str

    @property
    def name(self) -> str:
        how = "nixl" if self.connector == "nixl" else f"{self.connector} {self.mode}"
        return f"{'vllm' if self.is_real else 'sim'} {how}"


class Fleet:
    def __init__(self, kind: Kind, environment: Environment | None = None) -> None:
        """`environment`: of vLLM, for a real one."""
        self.kind = kind
        self.folder = Path(tempfile.mkdtemp(prefix="pd-engines-", dir="/tmp"))
        assert kind.is_real == (environment is not None)
        self._environment = environment
        self._stack: Stack | None = None
        self._engines: list[Any] = []
        self.is_spoilt = False
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"Fleet({self.kind.name})"

    # --- life

    def _start(self) -> None:
        """MoRI-IO's engines must know the router, and the router must know NIXL's."""
        if self.kind.connector == "moriio":
            config = {"placement": {"write_legs": "in_series"}, "probe": PROBE}
            self._stack = Stack(config, workers=2)
            self._start_engines(self.stack.registration)
        else:
            self._start_engines("")
            entries = [self.entry(engine) for engine in self._engines]
            config = {"connector": "nixl", "instances": entries, "probe": PROBE}
            self._stack = Stack(config, workers=2)
        self.stack.start(120)
        for engine in self._engines:
            if isinstance(engine, VllmEngine):
                engine.wait_healthy()
        self.stack.wait_placeable(self.prefill, self.decode, timeout_s=120)

    @property
    def stack(self) -> Stack:
        assert self._stack is not None
        return self._stack

    def _start_engines(self, registration: str) -> None:
        self.prefill = self._start_engine("prefill", registration)
        self.decode = self._start_engine("decode", registration)

    def _start_engine(self, role: str, registration: str) -> Any:
        kind = self.kind
        if self._environment is not None:
            wiring = Wiring(kind.connector, kind.mode, registration)
            engine: Any = VllmEngine(self._environment, self.folder, role, wiring)
        else:
            options = {"connector": "nixl", "kv_lease_s": SIM_HOLD_S}
            if kind.connector == "moriio":
                options = {"mode": kind.mode, "ping_interval_s": 1, "defer_timeout_s": SIM_HOLD_S}
            sizes = {"dp_size": RANKS, "max_model_len": CONTEXT_TOKENS}
            engine = Engine(role, registration, version=VERSION, model=MODEL, **sizes, **options)
        self._engines.append(engine)
        return engine

    def close(self) -> None:
        with ExitStack() as each:  # also when one of them cannot be ended
            each.callback(shutil.rmtree, self.folder, ignore_errors=True)
            for engine in self._engines:
                each.callback(engine.close)
            if self._stack is not None:
                each.callback(self._stack.close)

    # --- what is seen

    def compare(self, questions: Sequence[Question], at_once: int = 1) -> Compared:
        """With the prefill engine's own answers; those that are equal are counted."""
        compared = compare(self.prefill.url, self.stack.url, questions, at_once)
        TALLY.add(self.kind.name, compared.requests)
        return compared

    def counters(self, engine: Any) -> Counters:
        return counters(engine.url)

    def rest(self, limit_s: float | None = None) -> None:
        """Wait until nothing is on its way: no request of the router, none in the engines, and no
        KV block in use."""
        limit_s = REST_S[self.kind.is_real] if limit_s is None else limit_s
        until(lambda: not any(self.stack.in_flight().values()), "every slot is free", limit_s)
        for engine in (self.prefill, self.decode):
            until(lambda e=engine: counters(e.url).is_at_rest, f"{engine.role} at rest", limit_s)

    # --- what can be broken

    def spoil(self) -> None:
        """What follows may leave an engine dead, or blocks of it taken for good: the next test
        that needs a sound fleet gets another."""
        self.is_spoilt = True

    def break_transfers(self, **control: Any) -> None:
        """Of real MoRI-IO engines: what the stand-in of its library is told; nothing: mend it."""
        for engine in (self.prefill, self.decode):
            beside = engine.control_path.with_suffix(".new")
            beside.write_text(json.dumps(control))
            beside.replace(engine.control_path)  # it is read at each transfer

    @contextmanager
    def second_router(self, *entries: dict[str, Any], **more: Any) -> Iterator[Stack]:
        """Another one in front of the same engines, which it knows from its configuration."""
        config = {"connector": self.kind.connector, "instances": list(entries)} | more
        config = {"placement": {"write_legs": "in_series"}, "probe": PROBE} | config
        with Stack(config, workers=1) as stack:
            addresses = {entry["url"].removeprefix("http://") for entry in entries}
            until(lambda: addresses <= stack.placeable(), f"placeable: {addresses}", 30)
            yield stack

    def entry(self, engine: Any, **changed: Any) -> dict[str, Any]:
        """Of the configuration's `instances`."""
        own = {"role": engine.role, "url": engine.url, "dp_size": RANKS}
        if self.kind.connector == "moriio":
            own |= {"transfer_mode": self.kind.mode, "zmq_address": _zmq_address(engine)}
        return own | changed


def _zmq_address(engine: Any) -> str:
    """As the engine registers it."""
    if isinstance(engine, VllmEngine):
        return engine.zmq_address
    ports = engine.ready
    return f"host:127.0.0.1,handshake:{ports['handshake_port']},notify:{ports['notify_port']}"
