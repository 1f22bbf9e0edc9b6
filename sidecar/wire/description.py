"""What an engine answers about itself: bodies of `/version` and `/v1/models` -> values.

Knows no HTTP. Invariant: what cannot be understood is unknown (None, empty), never an error,
because an unknown engine is still served (design §4).
"""

import re

import msgspec

from sidecar.routing.instance import Version

MAX_MODELS = 1024
"""names taken from one engine: a base model and its adapters"""
MAX_NAME_CHARS = 512

_VERSION = re.compile(r"v?(\d{1,4})\.(\d{1,4})(?![\d])")


class _VersionBody(msgspec.Struct):
    version: str


class _Model(msgspec.Struct):
    id: str


class _ModelsBody(msgspec.Struct):
    data: list[_Model]


_version_decoder = msgspec.json.Decoder(_VersionBody)
_models_decoder = msgspec.json.Decoder(_ModelsBody)


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


def parse_models(body: bytes) -> tuple[str, ...]:
    """`{"data": [{"id": name}, …]}` to the names in order, each once; empty when unknown."""
    try:
        models = _models_decoder.decode(body).data
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return ()
    names = (model.id for model in models[:MAX_MODELS])
    return tuple(dict.fromkeys(name for name in names if 0 < len(name) <= MAX_NAME_CHARS))
