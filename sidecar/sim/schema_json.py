"""JSON that follows from the model's words: any object, or a value of a JSON schema."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

MAX_DEPTH = 8  # deeper values are empty: a recursive schema has no end
_PIECE = re.compile(r"\s*\S+")


class _Words:
    """The words one by one, as texts or as numbers."""

    def __init__(self, words: Iterator[str]) -> None:
        self._words = words

    def text(self, count: int = 2) -> str:
        return " ".join(next(self._words).strip() for _ in range(count))

    def number(self, below: int) -> int:
        return int.from_bytes(next(self._words).strip().encode(), "big") % below


def any_object(words: Iterator[str]) -> str:
    """What `json_object` gets."""
    source = _Words(words)
    return json.dumps({source.text(1): source.text(3), source.text(1): source.number(1000)})


def value_of_schema(schema: Any, words: Iterator[str]) -> str:
    """A value of the schema: every property is there, with a value of its type.

    Types, properties, enum, const, items, local $ref and the first of anyOf, oneOf and allOf are
    followed; patterns and bounds are not.
    """
    root = schema if isinstance(schema, Mapping) else {}
    return json.dumps(_value(root, root, _Words(words), 0))


def _value(schema: Any, root: Mapping[str, Any], words: _Words, depth: int) -> Any:
    schema = _resolved(schema, root)
    if "const" in schema:
        return schema["const"]
    if isinstance(schema.get("enum"), list) and schema["enum"]:
        return schema["enum"][words.number(len(schema["enum"]))]
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = kind[0] if kind else None
    if kind == "object" or (kind is None and "properties" in schema):
        properties = schema.get("properties")
        if not isinstance(properties, Mapping):
            return {words.text(1): words.text()}
        if depth >= MAX_DEPTH:
            return {}
        return {name: _value(one, root, words, depth + 1) for name, one in properties.items()}
    if kind == "array":
        if depth >= MAX_DEPTH:
            return []
        return [_value(schema.get("items") or {}, root, words, depth + 1)]
    return _scalar(kind, words)


def _scalar(kind: Any, words: _Words) -> Any:
    match kind:
        case "integer":
            return words.number(1000)
        case "number":
            return words.number(1000) / 8
        case "boolean":
            return words.number(2) == 1
        case "null":
            return None
        case _:
            return words.text()


def _resolved(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema itself, at the end of references and alternatives."""
    for _ in range(MAX_DEPTH):
        if not isinstance(schema, Mapping):
            return {}
        if isinstance(schema.get("$ref"), str):
            schema = _local(schema["$ref"], root)
            continue
        options = next((schema[k] for k in ("anyOf", "oneOf", "allOf") if schema.get(k)), None)
        if not isinstance(options, list):
            return schema
        schema = options[0]
    return {}


def _local(reference: str, root: Mapping[str, Any]) -> Any:
    found: Any = root
    for step in reference.removeprefix("#").split("/")[1:]:
        found = found.get(step) if isinstance(found, Mapping) else None
    return found


def pieces_of(text: str) -> list[str]:
    """Where a JSON text is cut into tokens: at its blanks; never fewer than two."""
    pieces = _PIECE.findall(text)
    if pieces:
        pieces[-1] += text[sum(map(len, pieces)) :]
    return pieces if len(pieces) > 1 else [text[:1], text[1:]]
