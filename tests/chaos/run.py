"""One run in one transfer mode: warm up, chaos, settle, the same load again, rest, compare."""

import asyncio
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sidecar.sim.options import Mode, Role
from tests.chaos.aftermath import (
    Row,
    engine_rows,
    process_rows,
    rest_rows,
    series_rows,
    settle,
)
from tests.chaos.assault import Assault
from tests.chaos.census import Process, census, series
from tests.chaos.log_lines import log_rows
from tests.chaos.outages import Outages
from tests.chaos.plan import make_plan
from tests.chaos.report import ends_table, rows_table, words
from tests.chaos.settings import WORKERS, settings
from tests.chaos.sim_engine import SimEngine
from tests.chaos.tally import Tally, clock
from tests.chaos.times import Times
from tests.chaos.traffic import Traffic
from tests.chaos.watch import Watch
from tests.e2e.stack import Stack, until

ROLES: tuple[Role, ...] = ("prefill",) * 3 + ("decode",) * 3
TICK_S = 0.03
PROGRESS_S = 5.0
START_LIMIT_S = 30.0
CALM_SEED = "calm"
"""of the load that is the same each time, so that what it leaves behind can be compared"""
QUIET_S = 6.0
"""Idle connections to engines are closed after 4 s (Envoy's, the workers'): they are no leak."""
SHOWN = 20
ENDS = (signal.SIGINT, signal.SIGTERM)


class Run:
    """One run; `go` says whether all conditions were met."""

    def __init__(
        self,
        mode: Mode,
        seed: int,
        times: Times,
        kinds: Collection[str],
        say: Callable[[str], None],
    ) -> None:
        self._mode = mode
        self._kinds = kinds
        self._seed = seed
        self._times = times
        self._say = say
        self._tally = Tally()
        self._outages = Outages()
        self._rows: list[tuple[str, list[Row]]] = []

    def go(self) -> bool:
        config, unknown = settings()
        self._say(f"\n{self._mode}: {self._times}")
        if unknown:
            self._say(f"  this sidecar does not know {', '.join(unknown)}")
        stack = Stack(config, workers=WORKERS)
        engines = [SimEngine(i, role, self._mode, stack) for i, role in enumerate(ROLES)]
        is_met = False
        try:
            try:
                self._run(stack, engines)
            except AssertionError as error:  # a wait that is over: what was seen is shown
                self._tally.violate(f"the run could not go on: {error}")
            is_met = self._conclude(stack)
        finally:
            # An impatient second Ctrl-C must not leave half of it behind.
            before = {number: signal.signal(number, signal.SIG_IGN) for number in ENDS}
            if not is_met:
                self._keep_logs(stack)
            for engine in engines:
                engine.close()
            stack.close()
            for number, handler in before.items():
                signal.signal(number, handler)
        return is_met

    def _run(self, stack: Stack, engines: list[SimEngine]) -> None:
        stack.start()
        for engine in engines:
            engine.start()
        addresses = {engine.address for engine in engines}
        until(lambda: addresses <= stack.placeable(), "all engines are placeable", START_LIMIT_S)
        self._calm(stack, self._times.warm_s, "warm-up")
        before, series_before = self._rest(stack, engines, "before", QUIET_S)
        self._chaos(stack, engines)
        self._rest(stack, engines, "after the chaos", QUIET_S)
        self._calm(stack, self._times.warm_s, "the same load")
        warm = census(stack, WORKERS)
        self._calm(stack, self._times.again_s, "and again")
        after, series_after = self._rest(stack, engines, "at the end", self._times.rest_s)
        self._rows.append(("processes", process_rows(before, warm, after)))
        self._rows.append(("metrics", series_rows(series_before, series_after)))

    def _calm(self, stack: Stack, seconds: float, what: str) -> None:
        """The calm load; every good request of it must have its right answer."""
        asked = self._tally.requests
        deadline = time.monotonic() + seconds
        traffic = Traffic(stack.url, CALM_SEED, self._tally, self._outages, is_calm=True)
        asyncio.run(traffic.run(lambda: time.monotonic() > deadline))
        self._say(f"  {what}: {self._tally.requests - asked} requests in {seconds:g} s")

    def _rest(
        self, stack: Stack, engines: list[SimEngine], when: str, rest_s: float
    ) -> tuple[dict[str, Process], frozenset[str]]:
        """Wait until nothing is held, then `rest_s` more; returns what each process holds."""
        rows = settle(lambda: rest_rows(stack, engines), self._times.settle_s)
        self._rows.append((when, rows))
        self._say(rows_table(when, [row for row in rows if not row.is_met] or rows[:1]))
        time.sleep(rest_s)
        return census(stack, WORKERS), series(stack)

    def _chaos(self, stack: Stack, engines: list[SimEngine]) -> None:
        plan = make_plan(self._seed, self._times.chaos_s, ROLES, WORKERS, self._kinds)
        self._say(f"  chaos: {len(plan)} faults in {self._times.chaos_s:g} s")
        watch = Watch(engines)
        is_over = threading.Event()
        seed = f"{self._mode}/{self._seed}"
        traffic = Traffic(stack.url, seed, self._tally, self._outages, is_calm=False)
        pool = ThreadPoolExecutor(1, "load")
        assault = Assault(plan, stack, engines, self._outages, self._tally, self._fault)
        watch.start()
        load = pool.submit(lambda: asyncio.run(traffic.run(is_over.is_set)))
        began = said = time.monotonic()
        try:
            while not assault.is_over and not load.done():
                assault.tick()
                if time.monotonic() - said >= PROGRESS_S:
                    said = time.monotonic()
                    self._progress(said - began, traffic, assault)
                time.sleep(TICK_S)
            assault.clear()
        finally:
            is_over.set()
            pool.shutdown()
            watch.stop()
        load.result()
        self._say(f"  faults: {words(assault.done)}; {watch.lives} lives of engines")
        self._rows.append(("engines, all lives", engine_rows(watch)))

    def _fault(self, text: str) -> None:
        self._say(f"    {clock(time.time())} {text}")

    def _progress(self, at_s: float, traffic: Traffic, assault: Assault) -> None:
        self._say(
            f"  {at_s:4.0f} s: {self._tally.requests} ended, {traffic.in_flight} open: "
            f"{words(self._tally.by_verdict())}; {sum(assault.done.values())} faults; "
            f"{len(self._tally.violations)} violations"
        )

    def _conclude(self, stack: Stack) -> bool:
        """Print everything; whether all is well."""
        self._rows.append(("logs", log_rows(stack)))
        self._say(f"\n{ends_table(self._tally.ends)}\n")
        self._say(f"the slowest took {self._tally.slowest_s:.2f} s\n")
        for title, rows in self._rows:
            self._say(rows_table(title, rows) + "\n")
        violations = self._tally.violations
        for one in violations[:SHOWN]:
            self._say(f"VIOLATION {one}")
            for entry in stack.access_log() if one.name else ():
                if entry["request_id"] == one.name:
                    self._say(f"  Envoy: {entry}")
        if len(violations) > SHOWN:
            self._say(f"... and {len(violations) - SHOWN} more violations")
        failed = [row for _, rows in self._rows for row in rows if not row.is_met]
        self._say(
            f"{self._mode}, seed {self._seed}: {self._tally.requests} requests, "
            f"{len(violations)} violations, {len(failed)} conditions not met"
        )
        return not violations and not failed

    def _keep_logs(self, stack: Stack) -> None:
        kept = Path(tempfile.mkdtemp(prefix=f"pd-chaos-{self._mode}-{self._seed}-"))
        for path in [*stack.folder.glob("*.log"), stack.folder / "run" / "envoy.log"]:
            if path.exists():
                shutil.copy(path, kept)
        self._say(f"the logs of `up`, Envoy and the engines are in {kept}")
