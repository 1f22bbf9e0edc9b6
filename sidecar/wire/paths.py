"""The paths of vLLM's API that the edge lets through, and who serves each (protocol h).

envoy/routes.yaml has the same paths; `tests/edge` holds them together. Knows nothing of instances.
"""

from enum import StrEnum


class Api(StrEnum):
    """Paths whose JSON body decides who serves it."""

    COMPLETIONS = "completions"
    CHAT = "chat_completions"
    RESPONSES = "responses"
    MESSAGES = "messages"
    BATCH = "batch_chat_completions"
    """several conversations in one request: never by a pair"""


SUFFIX = {
    Api.COMPLETIONS: "/completions",
    Api.CHAT: "/chat/completions",
    Api.RESPONSES: "/responses",
    Api.MESSAGES: "/messages",
    Api.BATCH: "/chat/completions/batch",
}
"""What follows an instance's base URL (which ends in `/v1`)."""


class Single(StrEnum):
    """Paths that one instance serves."""

    MODEL = "model"
    """runs the model without KV transfer: not on a decode instance that would garble it"""
    ANY = "any"
    """runs no model"""


class Own(StrEnum):
    """Paths that no instance is asked for."""

    HEALTH = "health"
    MODELS = "models"
    STORED_RESPONSE = "stored_response"


_APIS = {"/v1" + suffix: api for api, suffix in SUFFIX.items()}

_FORMS = frozenset(("/v1/audio/transcriptions", "/v1/audio/translations"))

_SINGLES = dict.fromkeys(
    (
        "/v1/embeddings", "/v2/embed", "/pooling", "/classify", "/score", "/v1/score", "/rerank",
        "/v1/rerank", "/v2/rerank", "/generative_scoring", "/v1/decisions", "/v1/systemone",
        *_FORMS,
    ),
    Single.MODEL,
)  # fmt: skip

API_PATHS, MODEL_PATHS = frozenset(_APIS), frozenset(_SINGLES)

_OWN = {"/health": Own.HEALTH, "/ping": Own.HEALTH, "/v1/models": Own.MODELS}

_STORED = "/v1/responses/"
_ON_A_RESPONSE = frozenset(("render",))
"""what may follow `/v1/responses/` and is no response's id"""


def api_of(path: str) -> Api | None:
    """The API of a request path, its query string ignored; None: no path of these."""
    return _APIS.get(_name(path))


def single_of(path: str) -> Single:
    """Of a path that is neither an API nor ours."""
    return _SINGLES.get(_name(path), Single.ANY)


def takes_form(path: str) -> bool:
    """Whether the body is a form, which must be looked into whatever models there are."""
    return _name(path) in _FORMS


def own_of(path: str) -> Own | None:
    name = _name(path)
    if name.startswith(_STORED) and name.removeprefix(_STORED) not in _ON_A_RESPONSE:
        return Own.STORED_RESPONSE
    return _OWN.get(name)


def _name(path: str) -> str:
    return path.partition("?")[0]
