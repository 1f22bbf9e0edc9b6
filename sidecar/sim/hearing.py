"""Which ports of a rank have heard of a transfer: some things count only once all have.

Pure. An entry is forgotten when it is told so, or the oldest when there are too many.
"""

from collections import Counter, OrderedDict
from typing import Generic, TypeVar

Key = tuple[int, str]
"""(data-parallel rank, transfer id)"""
_Value = TypeVar("_Value")


class Hearing(Generic[_Value]):
    """The last value that each transfer's ports were told. `ports` are those of one rank."""

    def __init__(self, ports: int, most: int) -> None:
        self._ports = ports
        self._most = most
        self._heard: OrderedDict[Key, tuple[_Value, Counter[int]]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._heard)

    def note(self, key: Key, port: int, value: _Value) -> None:
        """One port was told `value`."""
        _, counts = self._heard.get(key, (value, Counter[int]()))
        counts[port] += 1
        self._heard[key] = value, counts
        if len(self._heard) > self._most:
            self._heard.popitem(last=False)

    def knows(self, key: Key) -> bool:
        """Whether any port has heard of it."""
        return key in self._heard

    def last(self, key: Key) -> _Value | None:
        """What was told last, or None."""
        entry = self._heard.get(key)
        return None if entry is None else entry[0]

    def is_complete(self, key: Key, times: int = 1) -> bool:
        """Whether every port of the rank has heard of it that often."""
        entry = self._heard.get(key)
        return entry is not None and all(entry[1][port] >= times for port in range(self._ports))

    def forget(self, key: Key) -> None:
        """It is over."""
        self._heard.pop(key, None)
