"""The metric families of design §8 that the sidecar feeds, as one typed structure.

Knows no part that feeds it. Labels come from closed or capped sets only; series of an instance
vanish with it, of every family that has the label. What is a count of something alive now
(in-flight, instances) is read at scrape time, never kept twice.
"""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from sidecar.telemetry.families import Counter, Histogram

MODELS_MAX = 100

# A request lives from some ms (a short whole answer) to an hour (a long stream).
DURATIONS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
# Time to first token: 1 ms (a fake engine) to 10 min (a queue at its limit).
FIRST_TOKEN_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 600)
# The sidecar's own time: 100 us is good, 50 ms is the cursors' lock running into its limit.
OVERHEAD_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1)
PLACEMENT_S = (0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1)

Sample = tuple[tuple[str, ...], float]
"""label values, value"""

Read = Callable[[], Iterable[Sample]]
_Kind = type[GaugeMetricFamily] | type[CounterMetricFamily]


class Live(Collector):
    """Families whose values are asked for at scrape time."""

    def __init__(self) -> None:
        self._families: list[tuple[_Kind, str, str, tuple[str, ...], Read]] = []

    def add(self, name: str, text: str, labels: tuple[str, ...], read: Read) -> None:
        self._families.append((GaugeMetricFamily, name, text, labels, read))

    def add_counter(self, name: str, text: str, labels: tuple[str, ...], read: Read) -> None:
        self._families.append((CounterMetricFamily, name, text, labels, read))

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        for kind, name, text, labels, read in self._families:
            family = kind(name, text, labels=labels)
            for values, number in read():
                family.add_metric(list(values), number)
            yield family


class Metrics:
    """All families; `registry` is passed in, so that tests have one each."""

    def __init__(self, registry: CollectorRegistry, version: str) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a `_created` series each doubles the scrape and says little
        self._registry = registry
        self._models: set[str] = set()
        self._per_instance: list[Counter | Histogram] = []
        self.live = Live()
        registry.register(self.live)
        self.live.add(
            "pd_sidecar_build_info", "The running version.", ("version",), lambda: [((version,), 1)]
        )
        self._add_requests()
        self._add_legs()
        self._add_pool()

    def _add_requests(self) -> None:
        """What clients see, and what the sidecar adds to it."""
        self.requests = self._counter("requests", "Ended requests.", "model_name", "api", "outcome")
        self.refusals = self._counter(
            "refusals", "Requests that the router answered or cut.", "reason"
        )
        self.cancellations = self._counter("cancellations", "Clients that left.", "phase")
        self.lost = self._counter("lost_exchanges", "Exchanges closed without an end entry.")
        self.request_duration = self._histogram(
            "request_duration_seconds",
            "From the request's first byte to the answer's last.",
            DURATIONS_S,
            "model_name",
            "streaming",
        )
        self.first_token = self._histogram(
            "time_to_first_token_seconds",
            "From the request's first byte to the first byte of the answer's body.",
            FIRST_TOKEN_S,
            "model_name",
            "streaming",
        )
        self.placement = self._histogram("placement_seconds", "The pick of the slots.", PLACEMENT_S)
        self.overhead = self._histogram(
            "routing_overhead_seconds",
            "All time of the sidecar in a request but waiting for prefill.",
            OVERHEAD_S,
        )

    def _add_legs(self) -> None:
        """What each instance did in them."""
        slot = ("instance", "dp_rank")
        self.placements = self._counter("placements", "Requests placed.", "role", *slot)
        self.prefill_duration = self._histogram(
            "prefill_duration_seconds",
            "The prefill leg, to its whole answer.",
            FIRST_TOKEN_S,
            *slot,
        )
        self.gap = self._histogram(
            "prefill_to_decode_gap_seconds",
            "READ: from prefill's answer to the dispatch of decode.",
            OVERHEAD_S,
            *slot,
        )
        self.decode_duration = self._histogram(
            "decode_duration_seconds",
            "From the end of prefill (READ) or the placement (WRITE) to the answer's end.",
            DURATIONS_S,
            *slot,
        )
        self.prefill_retries = self._counter(
            "prefill_retries", "Prefill legs tried on another slot.", "instance", "reason"
        )
        self.recomputed = self._counter(
            "recomputed_requests", "Served whole because prefill handed over no KV.", "instance"
        )
        self.orphaned = self._counter(
            "orphaned_transfers", "Transfers given up, engine not told.", "instance"
        )
        self.released = self._counter(
            "released_transfers", "Transfers given up, engine told.", "instance"
        )

    def _add_pool(self) -> None:
        """What engines and our own processes say."""
        self.ejections = self._counter(
            "instance_ejections", "Instances taken out for failed requests.", "instance", "reason"
        )
        self.heartbeats = self._counter("heartbeats", "Heartbeats heard.")
        self.heartbeats_rejected = self._counter(
            "heartbeats_rejected", "Registration frames dropped.", "reason"
        )
        self.records_dropped = self._counter(
            "records_dropped", "Records of workers lost while control was away."
        )
        self.unlocked_picks = self._counter(
            "unlocked_picks", "Picks made without the cursors' lock (held for over 50 ms)."
        )

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        family = Counter(f"pd_sidecar_{name}", text, labels, registry=self._registry)
        if "instance" in labels:
            self._per_instance.append(family)
        return family

    def _histogram(
        self, name: str, text: str, buckets: tuple[float, ...], *labels: str
    ) -> Histogram:
        family = Histogram(
            f"pd_sidecar_{name}", text, labels, buckets=buckets, registry=self._registry
        )
        if "instance" in labels:
            self._per_instance.append(family)
        return family

    def model(self, name: str) -> str:
        """`name` as a label: after 100 different ones, `other`."""
        if name in self._models:
            return name
        if len(self._models) >= MODELS_MAX:
            return "other"
        self._models.add(name)
        return name

    def forget_instance(self, address: str) -> None:
        """Drop every series that names the instance."""
        for family in self._per_instance:
            family.remove_by_labels({"instance": address})
