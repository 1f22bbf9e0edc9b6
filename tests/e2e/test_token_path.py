"""Token bytes never pass through Python."""

import asyncio
from collections.abc import Callable

import pytest

from tests.e2e.stack import Stack, until
from tests.e2e.test_crashes import streams_around

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize("mode", ["READ", "WRITE"])
def test_no_ext_proc_stream_is_open_while_tokens_flow(
    stack_of: Callable[..., Stack], mode: str
) -> None:
    """200 streams run through Envoy and none of them through a worker, by Envoy's own count."""
    stack = stack_of(workers=2)
    stack.fleet([1, 1], [1, 1], mode, tokens_per_s=10)

    def look() -> None:
        until(lambda: stack.envoy_stat("cluster.workers.upstream_rq_active") == 0, "all placed")
        assert stack.envoy_stat("cluster.engines.upstream_rq_active") == 200
        assert stack.envoy_stat("cluster.workers.upstream_rq_active") == 0
        counted = {"prefill": 0, "decode": 200}
        until(lambda: stack.in_flight() == counted, "counts are right", 1)
        until(lambda: {e["phase"] for e in stack.exchanges()} == {"decode"}, "all are with decode")

    answers = asyncio.run(streams_around(stack, 200, 60, look))
    assert all(a.is_right for a in answers)
    until(lambda: stack.in_flight() == {"prefill": 0, "decode": 0}, "all released")
    until(lambda: stack.metric("pd_sidecar_requests_total", outcome="ok") == 200, "all counted")
