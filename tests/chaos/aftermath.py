"""What must hold when all is over: read, compared, and shown with its numbers."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.chaos.census import Process
from tests.chaos.engine_errors import EXPLAINED, unexplained
from tests.chaos.settings import WORKERS
from tests.chaos.sim_engine import SimEngine
from tests.chaos.watch import Watch
from tests.e2e.stack import Stack, http

POLL_S = 0.5
RSS_GROWTH = 1.10
FILES_SLACK = 12
THREADS_SLACK = 2
"""The first message to an engine's notify port makes a ZMQ context (2 threads, 6 files) and a
connection, perhaps after the warm-up. A leak in one of a thousand requests is more."""
ENGINE_ZEROS = (
    "running",
    "waiting",
    "held_transfers",
    "held_blocks",
    "leaked_transfers",
    "leaked_blocks",
    "holding_now",
    "is_dead",
    "notify_threads_dead",
)
"""of an engine at rest; a key that the simulator does not have is left out"""
ENVOY_ZEROS = ("cluster.engines.upstream_rq_active", "http.edge.downstream_rq_active")


@dataclass(frozen=True, slots=True)
class Row:
    """One condition. `seen` and `wanted` are words for the table."""

    what: str
    seen: str
    wanted: str
    is_met: bool

    @classmethod
    def equal(cls, what: str, seen: object, wanted: object) -> "Row":
        return cls(what, str(seen), str(wanted), seen == wanted)


def settle(read: Callable[[], list[Row]], limit_s: float) -> list[Row]:
    """The rows once all are met, or when the limit is over."""
    deadline = time.monotonic() + limit_s
    while True:
        rows = read()
        if all(row.is_met for row in rows) or time.monotonic() > deadline:
            return rows
        time.sleep(POLL_S)


def rest_rows(stack: Stack, engines: Sequence[SimEngine]) -> list[Row]:
    """Nothing is open or held anywhere, and everybody is there."""
    return [*_sidecar_rows(stack, engines), *_envoy_rows(stack), *_engine_rows(engines)]


def _sidecar_rows(stack: Stack, engines: Sequence[SimEngine]) -> list[Row]:
    status = stack.status()
    if status is None:
        return [Row("/status", "no answer", "an answer", False)]
    instances: list[dict[str, Any]] = status["instances"]
    code, body = http("GET", f"{stack.admin}/exchanges")
    exchanges = json.loads(body) if code == 200 else None
    held = {
        f"{one['name']}#{rank['dp_rank']}": rank["in_flight"]
        for one in instances
        for rank in one["ranks"]
        if rank["in_flight"]
    }
    current = [one["is_current"] for one in status["envoys"]]
    return [
        Row.equal("workers", status["workers"], WORKERS),
        Row.equal("Envoys, current", current, [True]),
        Row.equal("not ready because", status["not_ready"], ""),
        Row.equal("placeable", sum(one["is_placeable"] for one in instances), len(engines)),
        Row.equal("instances", len(instances), len(engines)),
        Row.equal("in flight (/status)", status["in_flight"], 0),
        Row.equal("slots held", held, {}),
        Row.equal("in flight (/metrics)", stack.metric("pd_sidecar_in_flight_requests"), 0.0),
        Row.equal("prompt bytes in flight", stack.metric("pd_sidecar_in_flight_prompt_bytes"), 0.0),
        Row(
            "/exchanges",
            "no answer" if exchanges is None else f"{len(exchanges)}: {exchanges[:3]}",
            "none",
            exchanges == [],
        ),
    ]


def _envoy_rows(stack: Stack) -> list[Row]:
    rows = []
    for name in ENVOY_ZEROS:
        status, body = http("GET", f"{stack.envoy_admin}/stats?filter=^{name}$")
        text = body.decode().strip() if status == 200 else "no answer"
        rows.append(Row.equal(f"Envoy {name}", text.rpartition(": ")[2], "0"))
    return rows


def _engine_rows(engines: Sequence[SimEngine]) -> list[Row]:
    rows = []
    for engine in engines:
        state = engine.state()
        name = f"{engine.name} ({engine.address}, life {engine.life})"
        if state is None:
            rows.append(Row(name, "no answer", "at rest", False))
            continue
        left = {key: state[key] for key in ENGINE_ZEROS if state.get(key)}
        rows.append(Row(name, f"holds {left}" if left else "at rest", "at rest", not left))
    return rows


def engine_rows(watch: Watch) -> list[Row]:
    """What the engines found wrong with what reached them, over all their lives."""
    errors = watch.errors()
    odd = unexplained(errors)
    rows = [
        Row.equal("router's faults seen by engines", odd, {}),
        Row.equal("engine cores that died", watch.deaths(), []),
        Row.equal("decode legs without blocks", watch.total("local_prefills"), 0),
        Row.equal("notify threads that died", watch.total("notify_threads_dead"), 0),
    ]
    for kind in sorted(errors.keys() & EXPLAINED.keys()):
        rows.append(Row(f"  {kind}", str(errors[kind]), EXPLAINED[kind], True))
    return rows


def process_rows(
    before: Mapping[str, Process], warm: Mapping[str, Process], after: Mapping[str, Process]
) -> list[Row]:
    """Files and threads as before the chaos. Memory as after the warm-up, by the lower of two: what
    the process of that name held before the chaos, and what this very one held after it and the
    same load again (most have been replaced meanwhile, and a young process grows by itself)."""
    rows = [Row.equal("processes", sorted(after), sorted(before))]
    for name in sorted(before.keys() & warm.keys() & after.keys()):
        first, second, last = before[name], warm[name], after[name]
        files = f"at most {first.files + FILES_SLACK}"
        rows.append(
            Row(f"{name}: files", str(last.files), files, last.files <= first.files + FILES_SLACK)
        )
        rows.append(
            Row(
                f"{name}: threads",
                str(last.threads),
                f"at most {first.threads + THREADS_SLACK}",
                last.threads <= first.threads + THREADS_SLACK,
            )
        )
        limit = int(min(first.rss_kib, second.rss_kib) * RSS_GROWTH)
        rows.append(
            Row(
                f"{name}: memory, KiB",
                f"{last.rss_kib} (before {first.rss_kib}, warm {second.rss_kib})",
                f"at most {limit}",
                last.rss_kib <= limit,
            )
        )
        rows.append(Row.equal(f"{name}: pid since the chaos", last.pid, second.pid))
    return rows


def series_rows(before: frozenset[str], after: frozenset[str]) -> list[Row]:
    """The same series after the same load."""
    return [
        Row.equal("metric series", len(after), len(before)),
        Row.equal("  new", sorted(after - before)[:5], []),
        Row.equal("  gone", sorted(before - after)[:5], []),
    ]
