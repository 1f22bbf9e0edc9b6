"""When Envoy was down, so that a connection refused or reset then is no fault. Pure."""

from math import inf


class Outages:
    """Spans of `monotonic()` seconds, the last one perhaps without an end yet."""

    def __init__(self) -> None:
        self._spans: list[tuple[float, float]] = []

    def begin(self, now: float) -> None:
        """Nobody serves the edge from now on."""
        if not self.is_now:
            self._spans.append((now, inf))

    def end(self, now: float) -> None:
        """Somebody does again."""
        if self.is_now:
            self._spans[-1] = (self._spans[-1][0], now)

    @property
    def is_now(self) -> bool:
        return bool(self._spans) and self._spans[-1][1] == inf

    def touch(self, started: float, ended: float) -> bool:
        """Whether the edge was down at some moment between the two."""
        return any(start <= ended and started <= end for start, end in self._spans)
