"""What a pooling model would answer: numbers that follow from the input and the model's name."""

import base64
import json
import struct
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

from sidecar.sim.api_error import ApiError, BrokenRule, InvalidBody
from sidecar.sim.models import ServedModel

DIMENSIONS = 8
MOST_DIMENSIONS = 64
CLASSES = 2
_PAIRS = (
    ("queries", "documents"),
    ("queries", "items"),
    ("data_1", "data_2"),
    ("text_1", "text_2"),
)
_COHERE_TYPES = ("float", "binary", "ubinary", "base64")


class Pooler:
    """The numbers of one request. `salt` is empty but on an engine that answers garbage."""

    def __init__(self, model: ServedModel, salt: bytes = b"") -> None:
        self._model = model
        self._salt = salt

    def vector(self, item: Any, count: int = DIMENSIONS) -> list[float]:
        """`count` numbers between -1 and 1."""
        name = json.dumps([self._model.name, item], sort_keys=True).encode() + self._salt
        digest = blake2b(name, digest_size=MOST_DIMENSIONS).digest()
        return [round(byte / 127.5 - 1, 6) for byte in digest[:count]]

    def score(self, one: Any, other: Any) -> float:
        """Between 0 and 1."""
        return round((self.vector([one, other])[0] + 1) / 2, 6)


def embeddings(body: Mapping[str, Any], pooler: Pooler) -> dict[str, Any]:
    """POST /v1/embeddings."""
    items = _items(body)
    count = body.get("dimensions") or DIMENSIONS
    if type(count) is not int or not 1 <= count <= MOST_DIMENSIONS:
        raise ApiError(400, f"dimensions must be between 1 and {MOST_DIMENSIONS}")
    encoding = body.get("encoding_format", "float")
    if encoding not in ("float", "base64"):
        problem = "Input should be 'float' or 'base64'"
        raise InvalidBody("encoding_format", "literal_error", problem, encoding)
    vectors = [pooler.vector(item, count) for item in items]
    data = [
        {"index": index, "object": "embedding", "embedding": _encoded(vector, encoding)}
        for index, vector in enumerate(vectors)
    ]
    return _listed(data, items)


def pooling(body: Mapping[str, Any], pooler: Pooler) -> dict[str, Any]:
    """POST /pooling."""
    items = _items(body)
    encoding = body.get("encoding_format", "float")
    data = [
        {"index": index, "object": "pooling", "data": _encoded(pooler.vector(item), encoding)}
        for index, item in enumerate(items)
    ]
    return _listed(data, items)


def classify(body: Mapping[str, Any], pooler: Pooler) -> dict[str, Any]:
    """POST /classify."""
    items, data = _items(body), []
    for index, item in enumerate(items):
        first = pooler.score(item, "class")
        probs = [first, round(1 - first, 6)]
        label = f"LABEL_{probs.index(max(probs))}"
        data.append({"index": index, "label": label, "probs": probs, "num_classes": CLASSES})
    return _listed(data, items)


def score(body: Mapping[str, Any], pooler: Pooler) -> dict[str, Any]:
    """POST /score: one against many, or pair by pair."""
    names = next((pair for pair in _PAIRS if all(name in body for name in pair)), None)
    if names is None:
        raise InvalidBody("queries", "missing", "Field required", dict(body))
    ones, others = (_as_list(body[name]) for name in names)
    if len(ones) not in (1, len(others)):
        raise ApiError(400, "Input lengths must be either 1:1, 1:N or N:N")
    ones = ones * len(others) if len(ones) == 1 else ones
    data = [
        {"index": index, "object": "score", "score": pooler.score(one, other)}
        for index, (one, other) in enumerate(zip(ones, others, strict=True))
    ]
    return _listed(data, [*ones, *others])


def rerank(body: Mapping[str, Any], pooler: Pooler) -> dict[str, Any]:
    """POST /rerank: the best first."""
    for name in ("query", "documents"):
        if name not in body:
            raise InvalidBody(name, "missing", "Field required", dict(body))
    top, query, documents = body.get("top_n") or 0, body["query"], _as_list(body["documents"])
    if type(top) is not int or top < 0:
        problem = "Input should be greater than or equal to 0"
        raise InvalidBody("top_n", "greater_than_equal", problem, top)
    results: list[dict[str, Any]] = [
        {
            "index": index,
            "document": {"text": one, "multi_modal": None}
            if isinstance(one, str)
            else {"text": None, "multi_modal": one.get("content", [])},
            "relevance_score": pooler.score(query, one),
        }
        for index, one in enumerate(documents)
    ]
    results.sort(key=lambda result: result["relevance_score"], reverse=True)
    tokens = _tokens([query, *documents])
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"usage": usage, "results": results[: top or None]}


def embed(body: Mapping[str, Any], pooler: Pooler) -> dict[str, Any]:
    """POST /v2/embed, Cohere's."""
    given = [body[key] for key in ("texts", "images", "inputs") if body.get(key) is not None]
    if len(given) != 1 or not given[0] or not isinstance(given[0], list):
        raise BrokenRule(
            "Exactly one of texts, images, or inputs must be provided, and it must be non-empty"
        )
    kinds = body.get("embedding_types") or ["float"]
    if not all(kind in _COHERE_TYPES for kind in kinds):
        problem = "Input should be 'float', 'binary', 'ubinary' or 'base64'"
        raise InvalidBody("embedding_types.0", "literal_error", problem, kinds)
    vectors = [pooler.vector([body.get("input_type"), item]) for item in given[0]]
    shown: dict[str, Any] = dict.fromkeys(_COHERE_TYPES)
    for kind in kinds:
        shown[kind] = [_cohere(vector, kind) for vector in vectors]
    billed = {"input_tokens": _tokens(given[0]), "image_tokens": None}
    return {
        "embeddings": shown,
        "texts": body.get("texts"),
        "meta": {"api_version": {"version": "2"}, "billed_units": billed},
        "response_type": "embeddings_by_type",
    }


def _cohere(vector: Sequence[float], kind: str) -> Any:
    if kind in ("float", "base64"):
        return _encoded(vector, kind)
    packed = sum(1 << 7 - place for place, number in enumerate(vector[:8]) if number >= 0)
    return [packed - 128 if kind == "binary" else packed]


def _encoded(vector: Sequence[float], encoding: str) -> Any:
    if encoding != "base64":
        return list(vector)
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def _items(body: Mapping[str, Any]) -> list[Any]:
    """The inputs: texts, token ids, or one or several conversations."""
    if "normalize" in body:
        raise BrokenRule(
            "Parameter `normalize` was removed; use `use_activation` instead.", "normalize"
        )
    if "messages" in body:
        messages = body["messages"]
        is_batch = isinstance(messages, list) and messages and isinstance(messages[0], list)
        return messages if is_batch else [messages]
    given = body.get("input")
    if isinstance(given, str):
        return [given]
    if isinstance(given, list) and given:
        return [given] if all(type(one) is int for one in given) else given
    raise InvalidBody("input", "string_type", "Input should be a valid string", given)


def _as_list(given: Any) -> list[Any]:
    listed = given if isinstance(given, list) else [given]
    if not listed or not all(isinstance(one, str | dict) for one in listed):
        raise InvalidBody("documents", "string_type", "Input should be a valid string", given)
    return listed


def _tokens(items: Sequence[Any]) -> int:
    return sum(
        len(item) if isinstance(item, list) else max(1, len(str(item).split())) for item in items
    )


def _listed(data: list[dict[str, Any]], items: Sequence[Any]) -> dict[str, Any]:
    tokens = _tokens(items)
    usage = {
        "prompt_tokens": tokens,
        "total_tokens": tokens,
        "completion_tokens": 0,
        "prompt_tokens_details": None,
    }
    return {"object": "list", "data": data, "usage": usage}
