"""What vLLM's own counters and gauges count of one data-parallel rank.

Requests that write text only: pooling and speech are not in it. Never reset while the engine lives,
as Prometheus wants it; `/sim/reset` has counters of its own.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(slots=True)
class Traffic:
    """Gauges of this moment, then counts since the life began. Tokens, but for the first three."""

    running: int = 0
    waiting: int = 0
    blocks: int = 0
    """Of the prompts of requests that are in the engine; what a connector holds is not in it."""
    external_queries: int = 0
    external_hits: int = 0
    prompt_computed: int = 0
    prompt_external: int = 0
    generated: int = 0

    @contextmanager
    def request(self, count: int, blocks: int) -> Iterator[None]:
        """`count` requests of the engine, with so many blocks together, run meanwhile."""
        self.running += count
        self.blocks += blocks
        try:
            yield
        finally:
            self.running -= count
            self.blocks -= blocks

    @contextmanager
    def wait(self) -> Iterator[None]:
        """One of the running requests waits meanwhile."""
        self.running -= 1
        self.waiting += 1
        try:
            yield
        finally:
            self.running += 1
            self.waiting -= 1

    def admit(self, tokens: int, external: int) -> None:
        """The scheduler takes a request and asks the connector, which promises `external` tokens.

        Counted then, whatever becomes of the transfer (v1/core/sched/scheduler.py).
        """
        self.external_queries += tokens
        self.external_hits += external

    def prefill(self, tokens: int, external: int) -> None:
        """Its first token is there: so many tokens of the prompt were computed, or fetched."""
        self.prompt_external += external
        self.prompt_computed += tokens - external
