"""What an engine counts of itself: its `/metrics`, the sum over its ranks."""

from dataclasses import dataclass

from tests.e2e.stack import http


@dataclass(frozen=True)
class Counters:
    external_hits: int
    """prompt tokens whose KV came from another engine"""
    running: int
    waiting: int
    kv_usage: float
    """of all its KV blocks, how much is in use; 0: none is"""

    @property
    def is_at_rest(self) -> bool:
        return not (self.running or self.waiting or self.kv_usage)


_NAMES = {
    "vllm:external_prefix_cache_hits_total": "external_hits",
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:kv_cache_usage_perc": "kv_usage",
}


def counters(url: str) -> Counters:
    """AssertionError when the engine does not answer, or does not count one of these."""
    status, body = http("GET", f"{url}/metrics")
    assert status == 200, f"{url}/metrics: {status}"
    found: dict[str, float] = {}
    for line in body.decode().splitlines():
        series, _, value = line.rpartition(" ")
        field = _NAMES.get(series.partition("{")[0])
        if field is not None:
            found[field] = found.get(field, 0.0) + float(value)
    missing = set(_NAMES.values()) - set(found)
    assert not missing, f"{url}/metrics has no {', '.join(sorted(missing))}"
    return Counters(
        external_hits=int(found["external_hits"]),
        running=int(found["running"]),
        waiting=int(found["waiting"]),
        kv_usage=found["kv_usage"],
    )
