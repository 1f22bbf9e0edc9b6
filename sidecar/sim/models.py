"""The models an engine serves: a base model, and adapters that come and go."""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from sidecar.sim.api_error import ApiError


class ServedModel(NamedTuple):
    """The model of one request: the name in its answer, and the adapter if it is one."""

    name: str
    adapter: str | None


class Models:
    """The first name is the base model; the others are its LoRA adapters."""

    def __init__(self, names: Sequence[str], max_model_len: int) -> None:
        self._base = names[0]
        self._adapters = dict.fromkeys(names[1:])
        self._max_model_len = max_model_len
        self._created = int(time.time())

    @property
    def names(self) -> list[str]:
        """All of them, the base model first."""
        return [self._base, *self._adapters]

    def find(self, name: str | None) -> ServedModel:
        """The model of that name, the base model for none; raises ApiError 404."""
        if not name or name == self._base:
            return ServedModel(self._base, None)
        if name in self._adapters:
            return ServedModel(name, name)
        message = f"The model `{name}` does not exist. Valid aliases: {self._base}."
        raise ApiError(404, message, "model")

    def load(self, name: str) -> None:
        """From now on there is an adapter of this name; twice is once."""
        if name != self._base:
            self._adapters[name] = None

    def unload(self, name: str) -> bool:
        """Whether there was such an adapter; there is none any more."""
        return self._adapters.pop(name, name) is None

    def cards(self) -> list[dict[str, Any]]:
        """What GET /v1/models lists."""
        return [self._card(self._base, None)] + [
            self._card(name, self._base) for name in self._adapters
        ]

    def _card(self, name: str, parent: str | None) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": "vllm",
            "root": name,
            "parent": parent,
            "max_model_len": None if parent else self._max_model_len,
            "permission": [],
        }
