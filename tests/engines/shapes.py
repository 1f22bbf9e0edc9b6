"""The shape of an answer: all but what follows from words, ids, times and counts.

A map is a map, a list is one element that all of its elements fit, a value is the name of its type,
or itself where it is a word of the API. What is null in one place and not in another is not null.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from tests.requests.answer import Answer

_TYPES = {str: "text", bool: "truth", int: "number", float: "number", type(None): "null"}
_OF_THE_API = (
    "object", "type", "role", "status", "reason", "finish_reason", "truncation", "tool_choice",
    "service_tier", "transfer_mode",
)  # fmt: skip
_BY_TOKEN = ("top_logprobs", "prompt_logprobs")
"""Their elements are maps whose keys are tokens."""
_ANY_LENGTH = ("content-length", "transfer-encoding")
_OF_THE_SERVER = ("date", "server")


def shape(answer: Answer) -> dict[str, Any]:
    """As JSON: `status`, `type`, `headers`; `error` as it is, or `body`, of a stream the shape of
    each kind of event."""
    names = {name for name in answer.headers if name not in _OF_THE_SERVER + _ANY_LENGTH}
    told: dict[str, Any] = {
        "status": answer.status,
        "type": answer.content_type,
        "headers": sorted(names),
    }
    if answer.content_type.startswith("text/event-stream"):
        return told | {"body": _of_events(answer.body.decode().splitlines())}
    value = json.loads(answer.body)
    if answer.status >= 400:
        return told | {"error": value}
    return told | {"body": _of_value(value)}


def _of_events(lines: Iterable[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for line in filter(None, lines):
        field, _, value = line.partition(": ")
        if value.startswith("{"):
            event = json.loads(value)
            kind = event.get("object") or event.get("type") or "event"
            found[kind] = (
                _both(found[kind], _of_value(event)) if kind in found else _of_value(event)
            )
        else:
            found[f"{field}: {value}"] = "seen"
    return found


def _of_value(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        if name in _BY_TOKEN and "token" not in value:
            return {"(token)": _merged(_of_value(one) for one in value.values())}
        return {key: _of_value(one, key) for key, one in value.items()}
    if isinstance(value, list):
        return [_merged(_of_value(one, name) for one in value)] if value else []
    if name in _OF_THE_API and isinstance(value, str):
        return f"'{value}'"
    return _TYPES[type(value)]


def _merged(shapes: Iterable[Any]) -> Any:
    merged: Any = None
    for one in shapes:
        merged = one if merged is None else _both(merged, one)
    return merged


def _both(one: Any, other: Any) -> Any:
    """What either is. Two types, which no field has, are both named."""
    if one == other or other in ("null", []):
        return one
    if one in ("null", []):
        return other
    if isinstance(one, dict) and isinstance(other, dict):
        return {
            key: _both(one.get(key, "null"), other.get(key, "null")) for key in {**one, **other}
        }
    if isinstance(one, list) and isinstance(other, list):
        return [_both(one[0], other[0])]
    return " or ".join(sorted({*one.split(" or "), *other.split(" or ")}))


def differing(vllm: Any, simulator: Any, *at: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """(path, what the two say there). Of answers of different status only that."""
    if not at and vllm["status"] != simulator["status"]:
        yield ("status",), f"{vllm['status']}; {simulator['status']}"
    elif isinstance(vllm, dict) and isinstance(simulator, dict):
        for key in {**vllm, **simulator}:
            if key not in simulator:
                yield (*at, key), f"{_short(vllm[key])}; not there"
            elif key not in vllm:
                yield (*at, key), f"not there; {_short(simulator[key])}"
            else:
                yield from differing(vllm[key], simulator[key], *at, key)
    elif isinstance(vllm, list) and isinstance(simulator, list) and vllm and simulator:
        yield from differing(vllm[0], simulator[0], *at)
    elif vllm != simulator:
        yield at, f"{_short(vllm)}; {_short(simulator)}"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 120 else text[:120] + "…"
