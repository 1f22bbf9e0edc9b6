"""Which path is whose."""

import pytest

from sidecar.wire.paths import SUFFIX, Api, Own, Single, api_of, own_of, single_of, takes_form


def test_paths_of_the_apis() -> None:
    """With or without a query; nothing else."""
    for api, suffix in SUFFIX.items():
        assert api_of("/v1" + suffix) is api
        assert api_of("/v1" + suffix + "?a=/b") is api
    for path in ("", "/", "/v1", "/v1/completions/", "/v1/embeddings", "/completions"):
        assert api_of(path) is None
    assert api_of("/v1/chat/completions/batch") is Api.BATCH


@pytest.mark.parametrize(
    ("path", "own"),
    [
        ("/health", Own.HEALTH),
        ("/ping?x=1", Own.HEALTH),
        ("/v1/models", Own.MODELS),
        ("/v1/responses/resp_1", Own.STORED_RESPONSE),
        ("/v1/responses/resp_1?stream=true", Own.STORED_RESPONSE),
        ("/v1/responses/resp_1/cancel", Own.STORED_RESPONSE),
        ("/v1/responses/render", None),
        ("/v1/responses", None),
        ("/version", None),
    ],
)
def test_paths_that_the_sidecar_answers(path: str, own: Own | None) -> None:
    """A stored response is one: it is refused here, whatever its id."""
    assert own_of(path) is own


@pytest.mark.parametrize(
    ("path", "single"),
    [
        ("/v1/embeddings", Single.MODEL),
        ("/v2/rerank?x", Single.MODEL),
        ("/v1/audio/transcriptions", Single.MODEL),
        ("/tokenize", Single.ANY),
        ("/v1/messages/count_tokens", Single.ANY),
        ("/v1/chat/completions/render", Single.ANY),
        ("/version", Single.ANY),
    ],
)
def test_what_runs_the_model_is_told_from_what_does_not(path: str, single: Single) -> None:
    """A decode engine that garbles plain requests may still tokenize."""
    assert single_of(path) is single


def test_forms_are_told_from_json() -> None:
    """Whatever the query."""
    assert takes_form("/v1/audio/transcriptions?a=/v1/embeddings")
    assert takes_form("/v1/audio/translations")
    for path in (
        "/v1/audio/transcriptions/",
        "/v1/audio",
        "/v1/embeddings",
        "/a?/v1/audio/translations",
    ):
        assert not takes_form(path)
