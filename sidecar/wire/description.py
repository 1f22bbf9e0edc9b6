"""What an engine answers about itself: bodies of `/version` and `/v1/models` -> values.

Knows no HTTP. Invariant: what cannot be understood is unknown (None, empty), never an error,
because an unknown engine is still served (design §4).
"""

import re

import msgspec

from sidecar.routing.instance import Version
from sidecar.routing.model_card import ModelCard
from sidecar.wire.openai import join, split

MAX_MODELS = 1024
"""names taken from one engine: a base model and its adapters"""
MAX_NAME_CHARS = 512
MAX_SAID_CHARS = 4096
"""of one model's entry; a longer one is shown by its name alone"""

_VERSION = re.compile(r"v?(\d{1,4})\.(\d{1,4})(?![\d])")


class _VersionBody(msgspec.Struct):
    version: str


class _Model(msgspec.Struct):
    id: str
    parent: object = None
    max_model_len: object = None
    created: object = None


class _ModelsBody(msgspec.Struct):
    data: list[msgspec.Raw]


_OF_THE_MOMENT = ("created", "permission")
"""another time and another random id in each answer of vLLM"""

_version_decoder = msgspec.json.Decoder(_VersionBody)
_models_decoder = msgspec.json.Decoder(_ModelsBody)
_model_decoder = msgspec.json.Decoder(_Model)


def parse_version(body: bytes) -> Version | None:
    """`{"version": "0.33.0"}` to 0.33.

    None for what is no version, and for `0.1.dev…`, which a build from a source tree without tags
    calls itself whatever its age.
    """
    try:
        text = _version_decoder.decode(body).version
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return None
    found = _VERSION.match(text)
    if found is None or text.startswith("0.1.dev"):
        return None
    return Version(int(found[1]), int(found[2]))


def parse_models(body: bytes) -> tuple[ModelCard, ...]:
    """`{"data": [{"id": name}, …]}` to the cards in order, each name once; empty when unknown."""
    try:
        entries = _models_decoder.decode(body).data[:MAX_MODELS]
        cards = [_card(entry) for entry in entries]
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return ()
    by_name: dict[str, ModelCard] = {}
    for card in cards:
        # It goes into logs and metrics, and an engine may say anything.
        if 0 < len(card.name) <= MAX_NAME_CHARS and card.name.isprintable():
            by_name.setdefault(card.name, card)
    return tuple(by_name.values())


def _card(entry: msgspec.Raw) -> ModelCard:
    model = _model_decoder.decode(entry)
    said = {k: v for k, v in split(bytes(entry)).items() if k not in _OF_THE_MOMENT}
    text = join(said).decode()
    return ModelCard(
        name=model.id,
        parent=model.parent if isinstance(model.parent, str) else None,
        max_model_len=_positive(model.max_model_len),
        created=_positive(model.created),
        said=text if len(text) <= MAX_SAID_CHARS else "",
    )


def _positive(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
