"""The metric families: capped labels, series that vanish with their instance, values read live."""

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from sidecar.telemetry.metrics import MODELS_MAX, Metrics

PER_INSTANCE = {
    "pd_sidecar_prefill_duration_seconds",
    "pd_sidecar_prefill_to_decode_gap_seconds",
    "pd_sidecar_decode_duration_seconds",
    "pd_sidecar_placements",
    "pd_sidecar_prefill_retries",
    "pd_sidecar_recomputed_requests",
    "pd_sidecar_orphaned_transfers",
    "pd_sidecar_instance_ejections",
}


def made() -> tuple[CollectorRegistry, Metrics]:
    registry = CollectorRegistry()
    return registry, Metrics(registry, "1.2.3")


def test_after_a_hundred_models_the_next_is_other() -> None:
    """Clients write model names: a label must not grow without a bound."""
    _, metrics = made()
    for i in range(MODELS_MAX):
        assert metrics.model(f"m{i}") == f"m{i}"
    assert metrics.model("one-more") == "other"
    assert metrics.model("m0") == "m0"


def test_forget_instance_drops_every_series_that_names_it() -> None:
    """In all families with the label, and no other instance's."""
    registry, metrics = made()
    for address in ("a:1", "b:1"):
        for histogram in (metrics.prefill_duration, metrics.gap, metrics.decode_duration):
            histogram.labels(address, "0").observe(1)
        metrics.placements.labels("prefill", address, "0").inc()
        metrics.prefill_retries.labels(address, "prefill_reset").inc()
        metrics.recomputed.labels(address).inc()
        metrics.orphaned.labels(address).inc()
        metrics.ejections.labels(address, "refused").inc()
    metrics.forget_instance("a:1")
    named: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            if "instance" in sample.labels:
                named.setdefault(family.name, set()).add(sample.labels["instance"])
    assert named == {name: {"b:1"} for name in PER_INSTANCE}
    metrics.forget_instance("never seen")


def test_live_families_are_read_at_scrape_time() -> None:
    """Gauges and counters, with and without labels; no value is kept twice."""
    registry, metrics = made()
    number = [1.0]
    metrics.live.add("pd_sidecar_x", "X.", ("role",), lambda: [(("prefill",), number[0])])
    metrics.live.add_counter("pd_sidecar_y_total", "Y.", (), lambda: [((), number[0])])
    assert registry.get_sample_value("pd_sidecar_x", {"role": "prefill"}) == 1
    number[0] = 2.0
    assert registry.get_sample_value("pd_sidecar_x", {"role": "prefill"}) == 2
    assert registry.get_sample_value("pd_sidecar_y_total") == 2
    assert registry.get_sample_value("pd_sidecar_build_info", {"version": "1.2.3"}) == 1


def test_all_families_have_the_prefix_and_a_text() -> None:
    """And no `_created` series beside them."""
    registry, metrics = made()
    metrics.heartbeats.inc()
    text = generate_latest(registry).decode()
    for family in text_string_to_metric_families(text):
        assert family.name.startswith("pd_sidecar_")
        assert family.documentation.endswith(".")
    assert "_created" not in text
