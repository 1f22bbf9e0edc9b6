"""Fill the placeholders of a YAML document.

A scalar that is exactly `${name}` becomes the value with its type; inside a longer string it is
interpolated (numbers without an exponent, so `${timeout_s}s` is a protobuf duration). A mapping
with `$when: ${name}` stays, without that key, only when the value is set. A list item that is a
mapping with `$each: ${name}` stands once for each item of that list, which is `${each}` inside it.

Knows nothing of Envoy and reads no file. Invariant: a placeholder without a value and a value
without a placeholder are both errors, so no setting silently does nothing.
"""

import re
from collections.abc import Mapping
from typing import Any

import msgspec
import yaml

from sidecar.errors import SnapshotError

_PLACEHOLDER = re.compile(r"\$\{([a-z_]+)\}")
_WHEN, _EACH, _ITEM = "$when", "$each", "each"
_ABSENT = object()


class Template(msgspec.Struct, frozen=True):
    """A parsed YAML document with placeholders. `name` is the file's name, for errors."""

    name: str
    document: dict[str, Any]
    placeholders: frozenset[str]

    @classmethod
    def parse(cls, name: str, text: str) -> "Template":
        """Raises SnapshotError when `text` is not a YAML mapping."""
        try:
            document = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise SnapshotError(f"{name}: not YAML: {error}") from error
        if not isinstance(document, dict):
            raise SnapshotError(f"{name}: not a mapping")
        if _ITEM in _outside(document):
            raise SnapshotError(f"{name}: ${{{_ITEM}}} stands outside of {_EACH}")
        return cls(name, document, frozenset(_names(document) - {_ITEM}))

    def fill(self, values: Mapping[str, object]) -> dict[str, Any]:
        """The document with every placeholder replaced; a new one, sharing nothing with this.

        Raises SnapshotError that names the file and each placeholder without a value or value
        without a placeholder.
        """
        faults = [f"${{{n}}} has no value" for n in sorted(self.placeholders - values.keys())]
        faults += [f"${{{n}}} is used nowhere" for n in sorted(values.keys() - self.placeholders)]
        if faults:
            raise SnapshotError(f"{self.name}: {', '.join(faults)}")
        try:
            filled = _fill(self.document, values)
        except TypeError as error:
            raise SnapshotError(f"{self.name}: {error}") from None
        return filled if isinstance(filled, dict) else {}


def _names(node: object) -> set[str]:
    if isinstance(node, dict):
        return {name for value in node.values() for name in _names(value)}
    if isinstance(node, list):
        return {name for value in node for name in _names(value)}
    return set(_PLACEHOLDER.findall(node)) if isinstance(node, str) else set()


def _outside(node: object) -> set[str]:
    """The names that stand in no item with `$each`."""
    if isinstance(node, dict):
        if _EACH in node:
            return set()
        return {name for value in node.values() for name in _outside(value)}
    if isinstance(node, list):
        return {name for value in node for name in _outside(value)}
    return _names(node)


def _fill(node: object, values: Mapping[str, object]) -> object:
    if isinstance(node, dict):
        return _fill_mapping(node, values)
    if isinstance(node, list):
        items = (filled for item in node for filled in _fill_item(item, values))
        return [item for item in items if item is not _ABSENT]
    if isinstance(node, str):
        whole = _PLACEHOLDER.fullmatch(node)
        if whole:
            return values[whole[1]]
        return _PLACEHOLDER.sub(lambda m: _text(values[m[1]]), node)
    return node


def _fill_item(item: object, values: Mapping[str, object]) -> list[object]:
    if not (isinstance(item, dict) and _EACH in item):
        return [_fill(item, values)]
    each = _fill(item[_EACH], values)
    if not isinstance(each, list | tuple):
        raise TypeError(f"{_EACH} takes a list, not {each!r}")
    rest = {key: value for key, value in item.items() if key != _EACH}
    return [_fill(rest, {**values, _ITEM: one}) for one in each]


def _fill_mapping(node: dict[str, object], values: Mapping[str, object]) -> object:
    filled = {key: _fill(value, values) for key, value in node.items()}
    if not filled.pop(_WHEN, True):
        return _ABSENT
    return {key: value for key, value in filled.items() if value is not _ABSENT}


def _text(value: object) -> str:
    if isinstance(value, float):
        # Nanoseconds are the finest that a protobuf duration takes.
        return f"{value:.9f}".rstrip("0").rstrip(".")
    return str(value)
