"""A pool that fails on purpose: two prefill and two decode engines behind the real thing."""

from collections.abc import Iterable
from typing import Any

from tests.e2e.stack import Engine, Stack, http, until

DEFER_S = 3.0
"""MoRI-IO's `defer_timeout`, and NIXL's lease: prefill frees what nobody fetches after this"""
PUSH_LIMIT_S = 1.5
"""`engine.transfer_timeout_s`: decode is told no earlier that nothing will be pushed"""
SLACK_S = 1.0
"""for a busy machine; less than what tells one way of freeing blocks from another"""
SETTLE_S = 3.0
"""records, log entries and their batches are all in by then"""
LIMITS: dict[str, Any] = {
    "prefill": {"timeout_s": 1.0, "attempts": 2},
    "decode": {"headers_timeout_s": 1.0, "idle_timeout_s": 1.2, "whole_timeout_s": 1.4},
    "request": {"upload_timeout_s": 1.0},
    "engine": {"release_kv": True, "transfer_timeout_s": PUSH_LIMIT_S},
    "tuning": {"http": {"max_body_bytes": 100_000}},
    # Rows share a pool: what one has broken must serve the next.
    "ejection": {"failures": 1000, "backoff_s": 0.2},
    "probe": {"interval_s": 0.2},
}
ENGINE = {"defer_timeout_s": DEFER_S, "ping_interval_s": 1}
READ, WRITE, NIXL = "READ", "WRITE", "NIXL"
"""how KV goes: MoRI-IO's two transfer modes, and NIXL's pull"""


class Pool:
    """Where KV goes in one way.

    `is_unwatched`: no probe comes between an event and the request. `has_other_connector`: its
    prefill engines have not the connector that the router was told of.
    """

    def __init__(
        self,
        mode: str,
        *,
        is_unwatched: bool = False,
        has_other_connector: bool = False,
        version: str = "0.33.0",
        **overrides: dict[str, Any],
    ) -> None:
        self.mode = mode
        config = {**LIMITS}
        for section, values in overrides.items():
            config[section] = LIMITS.get(section, {}) | values
        engines = None
        # Those of NIXL register nowhere.
        if is_unwatched or has_other_connector or mode == NIXL:
            engines = _static_engines(mode, version, has_other_connector)
            config["instances"] = [_static(engine, mode) for engine in engines]
        if is_unwatched:
            config["probe"] = {"interval_s": 600}
        if mode == NIXL:
            config["connector"] = "nixl"
            # Its blocks are freed by a lease: the key would be a fault.
            config["engine"] = {**config["engine"], "release_kv": False}
        self.stack = Stack(config, workers=1)
        self.stack.engines += engines or []
        try:
            self.stack.start()
            if engines is None:
                self.prefill, self.decode = self.stack.fleet(
                    [1, 1], [1, 1], mode, version=version, **ENGINE
                )
            else:
                self.prefill, self.decode = engines[:2], engines[2:]
                self.stack.wait_placeable(*engines)
            refused = {"reason": "no_worker"}
            until(
                lambda: self.count("refusals_total", refused) >= self.stack.unserved,
                "what the start was refused is counted, and not within a row",
            )
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self.stack.close()

    @property
    def engines(self) -> list[Engine]:
        return [*self.prefill, *self.decode]

    # --- arranging

    def fault(self, engines: Iterable[Engine], leg: str, kind: str, **what: Any) -> None:
        """Every request of that leg suffers it at these engines, until `heal`."""
        for engine in engines:
            engine.ask("faults", leg=leg, kind=kind, **({"count": -1} | what))

    def heal(self) -> None:
        """All engines serve again, and are placed on."""
        for engine in self.engines:
            status, _ = http("DELETE", f"{engine.url}/sim/faults")
            assert status == 200
            engine.ask("health")
            engine.ask("hold", hold=False)
            engine.ask("pace", ttft_ms=0.0)
        self.stack.wait_placeable(*self.engines)

    def take_out(self, engines: Iterable[Engine]) -> None:
        """All of a role: their `/health` is bad, and the pool and its worker know it."""
        engines = list(engines)
        for engine in engines:
            engine.ask("health", status=503)
        out = {engine.address for engine in engines}
        until(lambda: not out & self.stack.placeable(), "they are out")
        # A worker answers this, from its own view, which comes later than control's.
        until(lambda: http("GET", f"{self.stack.url}/health")[0] == 503, "the worker knows it")

    # --- checking

    def count(self, family: str, labels: dict[str, str]) -> float:
        return self.stack.metric(f"pd_sidecar_{family}", **labels)

    def wait_at_rest(self, freed_within_s: float) -> None:
        """No slot, exchange or block is held any more, and nobody was hurt."""
        stack = self.stack
        until(lambda: stack.exchanges() == [], "no exchange is open", SETTLE_S)
        until(lambda: stack.in_flight() == {"prefill": 0, "decode": 0}, "slots free", SETTLE_S)
        until(lambda: not self.held(), "no block is held", freed_within_s + SLACK_S)
        for engine in self.engines:
            state = engine.state()
            assert not state["is_dead"], state["cause_of_death"]
            assert not state["notify_threads_dead"], state["errors"]
            assert not state["early_releases"], "a release for a transfer that was not there"

    def awaited(self) -> int:
        """Transfers whose blocks decode holds for a push."""
        states = [engine.state() for engine in self.decode]
        return sum(state["waiting"] + state["leaked_transfers"] for state in states)

    def told(self) -> int:
        """Transfers that decode engines gave up because we told them."""
        return sum(engine.state()["failed_by_notify"] for engine in self.decode)

    def held(self) -> dict[str, dict[str, int]]:
        """By engine: requests and blocks, those of them that are not zero."""
        until(lambda: all(map(is_listening, self.engines)), "the engines can be asked")
        kinds = ("running", "waiting", "held_blocks", "leaked_blocks")
        states = {engine.address: engine.state() for engine in self.engines}
        found = {a: {k: s[k] for k in kinds if s[k]} for a, s in states.items()}
        return {address: what for address, what in found.items() if what}

    def bad_log_lines(self) -> list[str]:
        """What the log must not have: an error or a traceback is a fault of ours."""
        marks = (" ERROR ", "Traceback", "CRITICAL")
        return [line for line in self.stack.log().splitlines() if any(m in line for m in marks)]


def is_listening(engine: Engine) -> bool:
    return http("GET", f"{engine.url}/sim/state")[0] == 200


def _static_engines(mode: str, version: str, has_other_connector: bool) -> list[Engine]:
    other = READ if mode == NIXL else NIXL
    prefill = _options(other if has_other_connector else mode)
    options = {"prefill": prefill, "decode": _options(mode)}
    return [
        Engine(role, "", version=version, **options[role])
        for role in ("prefill",) * 2 + ("decode",) * 2
    ]


def _options(mode: str) -> dict[str, Any]:
    if mode == NIXL:
        return {"connector": "nixl", "kv_lease_s": DEFER_S}
    return {"mode": mode, **ENGINE}


def _static(engine: Engine, mode: str) -> dict[str, Any]:
    told = {"role": engine.role, "url": engine.url}
    if mode == NIXL:
        return told
    host = engine.address.partition(":")[0]
    handshake = engine.ready["handshake_port"]
    # One of NIXL has no notify port, and nobody asks it anything there.
    notify = engine.ready["notify_port"] or handshake
    zmq = f"host:{host},handshake:{handshake},notify:{notify}"
    return {**told, "transfer_mode": mode, "zmq_address": zmq}
