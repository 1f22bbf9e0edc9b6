"""GET /metrics: vLLM's own families as far as the simulator knows their truth, by rank.

Names, labels and when each counts are those of vllm/v1/metrics/loggers.py. There is no prefix cache
here, so `local_cache_hit` is always 0.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from aiohttp import web

from sidecar.sim.connector import Connector
from sidecar.sim.core import Core

KV_BLOCKS = 65_536
"""Of one rank, for the share in use; there is no limit to them."""
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_Sample = tuple[str, float]
"""Labels beyond those that every family has, and a value."""


class _Family(NamedTuple):
    name: str
    kind: str
    help: str
    samples: Callable[[int], list[_Sample]]
    """Of a rank."""


class MetricsRoute:
    """One engine's. It answers after the engine's death, too: vLLM's API server has it."""

    def __init__(self, core: Core, connector: Connector) -> None:
        self._core = core
        self._connector = connector
        self._families = self._of_scheduler() + self._of_connector() + self._of_tokens()

    def routes(self) -> list[web.RouteDef]:
        """It alone."""
        return [web.get("/metrics", self.metrics)]

    async def metrics(self, _request: web.Request) -> web.Response:
        """GET /metrics, Prometheus' text."""
        body = "".join(line + "\n" for family in self._families for line in self._lines(family))
        return web.Response(body=body.encode(), headers={"Content-Type": CONTENT_TYPE})

    def _lines(self, family: _Family) -> Iterator[str]:
        # As prometheus_client: the family's name without _total, the samples' with it.
        name = family.name + ("_total" if family.kind == "counter" else "")
        yield f"# HELP {name} {family.help}"
        yield f"# TYPE {name} {family.kind}"
        model = _escaped(self._core.options.models[0])
        for rank in range(self._core.options.dp_size):
            for more, value in family.samples(rank):
                yield f'{name}{{engine="{rank}",model_name="{model}"{more}}} {float(value)!r}'

    def _of_scheduler(self) -> list[_Family]:
        traffic = self._core.traffic
        return [
            _Family(
                "vllm:num_requests_running",
                "gauge",
                "Number of requests in model execution batches.",
                lambda rank: [("", traffic[rank].running)],
            ),
            _Family(
                "vllm:num_requests_waiting",
                "gauge",
                "Number of requests waiting to be processed.",
                lambda rank: [("", traffic[rank].waiting)],
            ),
            _Family(
                "vllm:kv_cache_usage_perc",
                "gauge",
                "KV-cache usage. 1 means 100 percent usage.",
                lambda rank: [("", self._usage(rank))],
            ),
        ]

    def _of_connector(self) -> list[_Family]:
        traffic = self._core.traffic
        return [
            _Family(
                "vllm:external_prefix_cache_queries",
                "counter",
                "Tokens of which the KV connector was asked.",
                lambda rank: [("", traffic[rank].external_queries)],
            ),
            _Family(
                "vllm:external_prefix_cache_hits",
                "counter",
                "Tokens that the KV connector promised.",
                lambda rank: [("", traffic[rank].external_hits)],
            ),
        ]

    def _of_tokens(self) -> list[_Family]:
        traffic = self._core.traffic
        return [
            _Family(
                "vllm:prompt_tokens",
                "counter",
                "Number of prefill tokens processed.",
                lambda rank: [("", traffic[rank].prompt_computed + traffic[rank].prompt_external)],
            ),
            _Family(
                "vllm:prompt_tokens_by_source",
                "counter",
                "Number of prompt tokens by source.",
                lambda rank: [
                    (',source="local_compute"', traffic[rank].prompt_computed),
                    (',source="local_cache_hit"', 0),
                    (',source="external_kv_transfer"', traffic[rank].prompt_external),
                ],
            ),
            _Family(
                "vllm:prompt_tokens_cached",
                "counter",
                "Number of cached prompt tokens (local + external).",
                lambda rank: [("", traffic[rank].prompt_external)],
            ),
            _Family(
                "vllm:generation_tokens",
                "counter",
                "Number of generation tokens processed.",
                lambda rank: [("", traffic[rank].generated)],
            ),
        ]

    def _usage(self, rank: int) -> float:
        blocks = self._core.traffic[rank].blocks + self._connector.held_blocks(rank)
        return min(1.0, blocks / KV_BLOCKS)


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
