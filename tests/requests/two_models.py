"""A pool that serves two models, one of them with an adapter."""

import json
from typing import Any

from tests.e2e.stack import Engine, Stack, http, until


class TwoModels:
    """`alpha` with the adapter `alpha-law` on one pair, `beta` on another."""

    def __init__(self) -> None:
        config = {
            "placement": {"aggregated_role": "decode"},
            "edge": {"profile_routes": True},
            "probe": {"interval_s": 0.1},
        }
        self.stack = Stack(config)
        try:
            self.stack.start()
            # 0.32 in READ: a decode engine that must not be given what has no KV.
            alpha = {"model": "alpha,alpha-law", "version": "0.32.0", "ping_interval_s": 1}
            beta = {"model": "beta", "ping_interval_s": 1, "max_model_len": 4096}
            self.alpha = [self.stack.engine(r, **alpha) for r in ("prefill", "decode")]
            self.beta = [
                self.stack.engine(r, **beta, profiler="torch") for r in ("prefill", "decode")
            ]
            self.stack.wait_placeable(*self.engines)
        except BaseException:
            self.stack.close()
            raise
        names = {one["address"]: one["name"] for one in self.stack.instances().values()}
        self.names = [[names[e.address] for e in pair] for pair in (self.alpha, self.beta)]

    @property
    def engines(self) -> list[Engine]:
        return [*self.alpha, *self.beta]

    @property
    def pairs(self) -> dict[str, list[Engine]]:
        """Each a prefill and a decode engine."""
        return {"alpha": self.alpha, "beta": self.beta}

    def ask(
        self, path: str, body: dict[str, Any] | None = None, method: str = "POST"
    ) -> tuple[int, Any]:
        status, answer = http(method, self.stack.url + path, body)
        return status, json.loads(answer) if answer else None

    def check_rest(self) -> None:
        """Every slot is free."""
        until(lambda: self.stack.exchanges() == [], "every exchange has ended")
        assert self.stack.in_flight() == {"prefill": 0, "decode": 0}


def served(engines: list[Engine]) -> int:
    """Requests that these engines have received."""
    return sum(engine.state()["requests_received"] for engine in engines)
