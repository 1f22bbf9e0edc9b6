"""Metric families that remember their series: finding one by its labels is a look into a dict.

The library's own search makes strings and takes a lock, for each of some ten series a request.
"""

from typing import Any, Self

import prometheus_client
from prometheus_client.metrics import MetricWrapperBase


class _Remembering(MetricWrapperBase):
    def __init__(self, *args: Any, **named: Any) -> None:
        self._known: dict[tuple[str, ...], Self] = {}
        super().__init__(*args, **named)

    def labels(self, *values: str) -> Self:  # type: ignore[override]  # by position alone
        child = self._known.get(values)
        if child is None:
            child = self._known[values] = super().labels(*values)
        return child

    def remove_by_labels(self, labels: dict[str, str]) -> None:
        super().remove_by_labels(labels)
        self._known.clear()


class Counter(_Remembering, prometheus_client.Counter): ...


class Histogram(_Remembering, prometheus_client.Histogram): ...
