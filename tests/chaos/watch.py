"""Sees what every life of every engine counted: a kill -9 takes the counts of that life with it."""

import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tests.chaos.sim_engine import SimEngine

POLL_S = 0.7


class Watch:
    """Asks all engines again and again, in a thread of its own."""

    def __init__(self, engines: Sequence[SimEngine]) -> None:
        self._engines = engines
        self._last: dict[tuple[str, int], dict[str, Any]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End, with one last look."""
        if self._thread.is_alive():
            self._stop.set()
            self._thread.join()
        self._look()

    @property
    def lives(self) -> int:
        return len(self._last)

    def errors(self) -> Counter[str]:
        """By kind, over all lives."""
        total: Counter[str] = Counter()
        for state in self._last.values():
            total.update(state["errors"])
        return total

    def deaths(self) -> list[str]:
        """Engine cores that died: what they got would have killed a real one."""
        return [
            f"{name}, life {life}: {state['cause_of_death']}"
            for (name, life), state in self._last.items()
            if state["is_dead"]
        ]

    def total(self, count: str) -> int:
        """Of one count over all lives; 0 where the simulator does not have it."""
        return sum(state.get(count, 0) for state in self._last.values())

    def _run(self) -> None:
        while not self._stop.wait(POLL_S):
            self._look()

    def _look(self) -> None:
        for engine in self._engines:
            life = engine.life
            if engine.is_stopped:
                continue
            state = engine.state()
            if state is not None and engine.life == life:
                self._last[engine.name, life] = state
