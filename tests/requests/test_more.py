"""Requests in a pool of one model whose answers say less than what the engines received."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.stack import Engine, Stack, http, until

pytestmark = pytest.mark.e2e

PROMPT = {"prompt": "A story about rivers", "max_tokens": 5}


class OneModel:
    def __init__(self, mode: str) -> None:
        self.stack = Stack()
        try:
            self.stack.start()
            prefill, decode = self.stack.fleet([1], [1], mode)
        except BaseException:
            self.stack.close()
            raise
        self.prefill: Engine = prefill[0]
        self.decode: Engine = decode[0]

    def ask(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        status, answer = http("POST", self.stack.url + path, body)
        return status, json.loads(answer)

    def requests(self, model: str) -> float:
        """As the metrics have them."""
        return self.stack.metric("pd_sidecar_requests_total", model_name=model)

    def bodies(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Of the last prefill leg and the last decode leg."""
        legs = (self.prefill.last("prefill")[-1], self.decode.last("decode")[-1])
        prefill, decode = (json.loads(leg["body"]) for leg in legs)
        return prefill, decode


@pytest.fixture(scope="module", params=["READ", "WRITE"])
def one(request: pytest.FixtureRequest) -> Iterator[OneModel]:
    one = OneModel(request.param)
    try:
        yield one
    finally:
        one.stack.close()


@pytest.mark.parametrize("said", [{}, {"model": None}, {"model": ""}])
def test_a_request_without_a_model_means_the_only_one(one: OneModel, said: dict[str, Any]) -> None:
    """Both engines get it as it came, and the metrics have the model's name."""
    before = one.requests("sim-model")
    status, answer = one.ask("/v1/completions", PROMPT | said)
    assert (status, answer["model"]) == (200, "sim-model"), answer
    until(
        lambda: one.requests("sim-model") > before, "the request is counted under the model's name"
    )
    assert all(body.get("model", "absent") in (None, "", "absent") for body in one.bodies())


def test_fields_that_nobody_knows_reach_both_legs(one: OneModel) -> None:
    """With their values as they were written."""
    extra = {"its_own": {"deep": [1, 2.5, None, "é"]}, "another": False}
    status, _ = one.ask("/v1/completions", PROMPT | {"model": "sim-model"} | extra)
    assert status == 200
    for body in one.bodies():
        assert {name: body[name] for name in extra} == extra


def test_the_prompts_shape_is_the_same_on_both_legs(one: OneModel) -> None:
    """Whatever shapes it: messages, tools, templates. Only what is about the answer differs."""
    asked = {
        "model": "sim-model",
        "messages": [{"role": "user", "content": "Which river?"}],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
        "tool_choice": "required",
        "chat_template_kwargs": {"enable_thinking": False},
        "add_generation_prompt": True,
        "cache_salt": "s",
        "priority": 3,
        "max_completion_tokens": 30,
        "stop": ["never said"],
        "logprobs": True,
        "top_logprobs": 1,
    }
    status, answer = one.ask("/v1/chat/completions", asked)
    assert status == 200, answer
    prefill, decode = one.bodies()
    about_the_answer = {"max_completion_tokens", "stop", "logprobs", "top_logprobs"}
    assert {k: decode[k] for k in asked} == asked
    assert {k: prefill[k] for k in asked.keys() - about_the_answer} == {
        k: v for k, v in asked.items() if k not in about_the_answer
    }
    assert prefill["max_completion_tokens"] == 1
    assert not {"stop", "logprobs", "top_logprobs"} & prefill.keys()


def test_a_model_that_nobody_serves_has_no_series_of_its_own(one: OneModel) -> None:
    """Clients may write anything; metrics have the names that are served."""
    before = one.requests("other")
    for name in ("nobody-1", "nobody-2"):
        assert one.ask("/v1/completions", PROMPT | {"model": name})[0] == 404
    until(lambda: one.requests("other") >= before + 2, "both are counted as another")
    assert not one.requests("nobody-1")


def test_nothing_is_spent_on_what_decode_would_refuse(one: OneModel) -> None:
    """One engine refuses it whole: no prefill, no block, and the other engine hears nothing."""
    before = one.decode.state()["requests_received"]
    legs = one.prefill.state()["ranks"]["prefill"]
    for wrong in ({"max_tokens": 0}, {"stop": [""]}, {"logprobs": 10**30}, {"min_tokens": 9}):
        status, answer = one.ask("/v1/completions", {"model": "sim-model"} | PROMPT | wrong)
        assert status == 400, wrong
        assert answer["error"]["type"].startswith("Bad"), wrong  # and no reason of ours
    assert one.decode.state()["requests_received"] == before
    assert one.prefill.state()["ranks"]["prefill"] == legs
