"""Which instance a path goes to, in a pool that serves two models, one of them with an adapter."""

import json
from functools import partial
from typing import Any

import pytest

from tests.e2e.stack import http, until
from tests.requests.two_models import TwoModels, served

pytestmark = pytest.mark.e2e

COMPLETIONS = "/v1/completions"


def test_models_are_the_union_as_the_engines_say_it(two: TwoModels) -> None:
    """Each once, with its parent and its length; `created` stays the same."""
    status, first = two.ask("/v1/models", method="GET")
    assert status == 200
    cards = {card["id"]: card for card in first["data"]}
    assert list(cards) == ["alpha", "alpha-law", "beta"]
    assert (cards["alpha-law"]["parent"], cards["alpha"]["parent"]) == ("alpha", None)
    assert (cards["beta"]["max_model_len"], cards["beta"]["owned_by"]) == (4096, "vllm")
    assert all(card["created"] > 0 for card in cards.values())
    assert two.ask("/v1/models", method="GET") == (200, first)


@pytest.mark.parametrize("model", ["alpha", "alpha-law", "beta"])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETIONS, {"prompt": "x", "max_tokens": 3}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
        ("/v1/embeddings", {"input": "x"}),
        ("/tokenize", {"prompt": "x"}),
    ],
)
def test_a_request_goes_to_instances_of_its_model(
    two: TwoModels, path: str, body: dict[str, Any], model: str
) -> None:
    """However often; the others hear nothing."""
    mine, others = (two.beta, two.alpha) if model == "beta" else (two.alpha, two.beta)
    before = served(mine), served(others)
    for _ in range(4):
        status, answer = two.ask(path, {"model": model, **body})
        assert status == 200, answer
    legs = 2 if path in (COMPLETIONS, "/v1/chat/completions") else 1
    assert (served(mine), served(others)) == (before[0] + 4 * legs, before[1])


def test_a_request_without_a_model_is_refused_with_their_names(two: TwoModels) -> None:
    """400 in OpenAI's shape: the pool has no only model, whichever path asks."""
    before = served(two.engines)
    for path in (COMPLETIONS, "/v1/embeddings", "/tokenize", "/v1/chat/completions/batch"):
        status, answer = two.ask(path, {"prompt": "x", "input": "x"})
        assert (status, answer["error"]["code"]) == (400, "model_missing")
        assert "(alpha, alpha-law, beta)" in answer["error"]["message"]
        assert answer["error"]["param"] == "model"
    assert served(two.engines) == before


def test_what_is_no_json_cannot_be_placed_by_its_model(two: TwoModels) -> None:
    """No instance is guessed; a form is for the audio paths alone."""
    url = two.stack.url + "/v1/embeddings"
    status, answer = http("POST", url, "not an object")
    assert (status, json.loads(answer)["error"]["code"]) == (400, "body_invalid")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETIONS, {"prompt": "x"}),
        ("/v1/embeddings", {"input": "x"}),
    ],
)
def test_an_unknown_model_is_an_engines_own_404(
    two: TwoModels, path: str, body: dict[str, Any]
) -> None:
    """In OpenAI's shape, and nothing is transferred for it."""
    status, answer = two.ask(path, {"model": "gamma", **body})
    assert status == 404
    assert "gamma" in answer["error"]["message"]
    assert answer["error"]["type"] == "NotFoundError"
    assert not any(e.state()["held_transfers"] for e in two.engines)


def test_what_one_transfer_cannot_carry_goes_where_the_operator_says(two: TwoModels) -> None:
    """To a decode instance, where its version does that right; else to a prefill one all the
    same."""
    asked = {"prompt": "x", "n": 2, "temperature": 0.5, "seed": 1}
    for model, leg in (("beta", two.beta[1]), ("alpha", two.alpha[0])):
        before = leg.state()["requests_received"]
        status, answer = two.ask(COMPLETIONS, {"model": model, **asked})
        assert status == 200, answer
        assert leg.state()["requests_received"] == before + 1
    assert not two.alpha[1].state()["errors"].get("garbled_plain")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/responses/resp_1"),
        ("GET", "/v1/responses/resp_1?stream=true"),
        ("DELETE", "/v1/responses/resp_1"),
        ("POST", "/v1/responses/resp_1/cancel"),
    ],
)
def test_a_kept_response_is_refused_with_a_reason(two: TwoModels, method: str, path: str) -> None:
    """Nobody knows which engine has it, so none is asked."""
    before = served(two.engines)
    status, answer = two.ask(path, method=method)
    assert (status, answer["error"]["code"]) == (400, "stored_response")
    assert served(two.engines) == before


@pytest.mark.parametrize(
    "field", [{"store": True}, {"background": True}, {"previous_response_id": "resp_1"}]
)
def test_a_response_that_is_to_be_kept_is_refused_by_its_field(
    two: TwoModels, field: dict[str, Any]
) -> None:
    """400 that names it; without the field, or with false, it is served."""
    asked = {"model": "beta", "input": "x", "max_output_tokens": 3}
    status, answer = two.ask("/v1/responses", asked | field)
    assert (status, answer["error"]["code"]) == (400, "stored_response")
    assert answer["error"]["param"] == next(iter(field))
    status, answer = two.ask("/v1/responses", asked | {"store": False})
    assert (status, answer["object"]) == (200, "response")


@pytest.mark.parametrize("where", ["admin", "url"])
def test_a_profile_is_started_and_stopped_on_every_engine(two: TwoModels, where: str) -> None:
    """On the admin port, and on the edge where the operator says so; each one's reply is shown.
    `alpha` was started without a profiler, and says so."""
    base = getattr(two.stack, where)
    for path, is_on in (("/start_profile", True), ("/stop_profile", False)):
        status, answer = http("POST", base + path, {})
        said = {one["instance"]: one["status"] for one in json.loads(answer)["instances"]}
        alpha, beta = two.names
        assert said == dict.fromkeys(alpha, 404) | dict.fromkeys(beta, 200)
        assert status == 502
        assert all(engine.state()["is_profiling"] is is_on for engine in two.beta)


def test_a_model_whose_instances_are_away_is_not_served_by_another(two: TwoModels) -> None:
    """503 as soon as the worker knows, also for the paths of one instance; `alpha` hears nothing.
    Who names no model is still asked to."""
    before = served(two.alpha)

    def is_away(path: str) -> bool:
        status, answer = two.ask(path, {"model": "beta", "prompt": "x", "input": "x"})
        return (status, answer.get("error", {}).get("code")) == (503, "no_prefill_instance")

    for engine in two.beta:
        engine.ask("health", status=503)
    try:
        for path in (COMPLETIONS, "/v1/embeddings"):
            until(partial(is_away, path), f"beta is away for {path}")
        assert served(two.alpha) == before
        status, answer = two.ask(COMPLETIONS, {"prompt": "x"})
        assert (status, answer["error"]["code"]) == (400, "model_missing")
    finally:
        for engine in two.beta:
            engine.ask("health", status=200)
        two.stack.wait_placeable(*two.beta)


def test_an_adapter_that_was_just_loaded_is_served(two: TwoModels) -> None:
    """As soon as one engine has said that it has it, whole; by a pair when both have. Engines are
    asked again now and then; until then one says 404, never anything else."""
    asked = {"model": "alpha-new", "prompt": "x"}

    def is_served() -> bool:
        status, answer = two.ask(COMPLETIONS, asked)
        assert status in (200, 404), answer
        return status == 200

    for engine in two.alpha:
        engine.ask("model", load="alpha-new")
        until(is_served, "the new adapter is served")

    def is_pair() -> bool:
        before = served(two.alpha)
        status, answer = two.ask(COMPLETIONS, asked)
        assert status == 200, answer
        return served(two.alpha) == before + 2

    until(is_pair, "a pair serves the new adapter")
    for engine in two.alpha:
        engine.ask("model", unload="alpha-new")
    until(lambda: two.ask(COMPLETIONS, asked)[0] == 404, "the adapter is gone")
