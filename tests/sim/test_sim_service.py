"""Small routes, the API key, adapters, the context's length, profiling, and what is counted."""

import pytest

from sidecar.sim.__main__ import main
from sidecar.sim.fleet import engine_command
from sidecar.sim.model import expected_text
from sidecar.sim.options import OptionError, SimOptions

pytestmark = pytest.mark.asyncio
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


async def get(lab, engine, path, **headers):
    async with lab.http.get(engine.url + path, headers=headers) as response:
        is_json = response.content_type == "application/json"
        return response.status, await response.json() if is_json else await response.text()


async def test_rendering_shows_the_tokens_of_a_prompt(lab) -> None:
    """As many as the request itself is billed for, in vLLM's shape of a generate request."""
    engine = lab.start("prefill")
    body = {"prompt": ["one two three", "four"], "max_tokens": 4, "stop": "x"}
    rendered = (await lab.post(engine, COMPLETIONS + "/render", body)).json
    assert [len(one["token_ids"]) for one in rendered] == [3, 1]
    (by_ids,) = (await lab.post(engine, COMPLETIONS + "/render", {"prompt": [7, 8]})).json
    assert by_ids["token_ids"] == [7, 8]
    assert rendered[0]["sampling_params"]["max_tokens"] == 4
    assert rendered[0]["sampling_params"]["stop"] == ["x"]
    chat = {"messages": [{"role": "user", "content": "hello you"}]}
    one = (await lab.post(engine, CHAT + "/render", chat, X_Request_Id="r")).json
    usage = (await lab.post(engine, CHAT, chat)).json["usage"]
    assert (one["request_id"], len(one["token_ids"])) == ("chatcmpl-r", usage["prompt_tokens"])
    no_model, beams = {"prompt": "a", "model": "x"}, {"prompt": "a", "use_beam_search": True}
    for bad, status in (({}, 400), (no_model, 404), (beams, 400)):
        assert (await lab.post(engine, COMPLETIONS + "/render", bad)).status == status


async def test_requests_that_run_no_model_are_kept_apart(lab) -> None:
    engine = lab.start("prefill")
    await lab.post(engine, "/tokenize", {"prompt": "a"})
    await lab.post(engine, COMPLETIONS + "/render", {"prompt": "a"})
    _, kept = await get(lab, engine, "/sim/last?leg=single")
    assert [one["path"] for one in kept] == ["/tokenize", COMPLETIONS + "/render"]
    state = await lab.state(engine)
    assert (state["ranks"]["plain"], state["requests_received"]) == ([0], 2)


async def test_all_that_arrives_is_counted_but_probes_and_controls(lab) -> None:
    """So that a test can show that nothing reached an engine."""
    engine = lab.start("prefill")
    agent = {"User-Agent": "pd-sidecar-probe"}
    for path in ("/health", "/ping", "/sim/state"):
        await get(lab, engine, path)
    for path in ("/version", "/v1/models"):
        await get(lab, engine, path, **agent)
    assert (await lab.state(engine))["requests_received"] == 0
    assert (await get(lab, engine, "/version"))[0] == 200
    assert (await get(lab, engine, "/no/such/route", **agent))[0] == 404
    await lab.post(engine, COMPLETIONS, {"prompt": 7})
    await lab.post(engine, COMPLETIONS, {"prompt": "a"})
    assert (await lab.state(engine))["requests_received"] == 4
    assert (await lab.control(engine, "reset"))["requests_received"] == 0


async def test_the_api_key_is_asked_for_where_vllm_asks(lab) -> None:
    engine = lab.start("prefill", api_key="s3cret")
    right = {"Authorization": "Bearer s3cret"}
    for path in ("/health", "/ping", "/version"):
        assert (await get(lab, engine, path))[0] == 200
    assert (await lab.post(engine, "/tokenize", {"prompt": "a"})).status == 200
    assert (await get(lab, engine, "/v1/models")) == (401, {"error": "Unauthorized"})
    assert (await get(lab, engine, "/v1/models", **right))[0] == 200
    for wrong in ({}, {"Authorization": "Bearer other"}, {"Authorization": "Basic s3cret"}):
        for path in (COMPLETIONS, "/v2/embed"):
            reply = await lab.post(engine, path, {"prompt": "a"}, **wrong)
            assert (reply.status, reply.json) == (401, {"error": "Unauthorized"})
    assert (await lab.post(engine, COMPLETIONS, {"prompt": "a"}, **right)).status == 200
    state = await lab.state(engine)
    assert (state["ranks"]["plain"], state["requests_received"]) == ([1], 11)


async def test_an_adapter_has_a_card_and_answers_otherwise(lab) -> None:
    engine = lab.start("prefill", model="base,tuned,other")
    _, listed = await get(lab, engine, "/v1/models")
    cards = {card["id"]: card["parent"] for card in listed["data"]}
    assert cards == {"base": None, "tuned": "base", "other": "base"}
    assert [card["max_model_len"] for card in listed["data"]] == [1 << 20, None, None]
    texts = {}
    for model in ("base", "", "tuned", "other"):
        reply = await lab.post(engine, COMPLETIONS, {"prompt": "hello", "model": model})
        texts[model] = reply.choice["text"]
        assert reply.json["model"] == (model or "base")
    assert texts["base"] == texts[""] == expected_text("completions", {"prompt": "hello"})
    assert len(set(texts.values())) == 3


async def test_adapters_come_and_go(lab) -> None:
    engine = lab.start("prefill", model="base")
    body = {"prompt": "hello", "model": "tuned"}
    assert (await lab.post(engine, COMPLETIONS, body)).status == 404
    assert (await lab.control(engine, "model", load="tuned"))["models"] == ["base", "tuned"]
    assert (await lab.post(engine, COMPLETIONS, body)).json["model"] == "tuned"
    assert (await lab.control(engine, "model", unload="tuned"))["models"] == ["base"]
    assert (await lab.post(engine, COMPLETIONS, body)).status == 404
    for wrong in ({}, {"unload": "tuned"}, {"unload": "base"}, {"load": ""}, {"load": 7}):
        async with lab.http.post(f"{engine.url}/sim/model", json=wrong) as response:
            assert response.status == 400, wrong


async def test_an_adapters_kv_is_not_the_base_models(lab) -> None:
    """A router that loses the model's name on one leg is seen."""
    prefill, decode = lab.pair("READ", model="base,tuned")
    body = {"prompt": "hello", "model": "tuned"}
    one_token = {"max_tokens": 1, "min_tokens": 1}
    _, right = await lab.legs((prefill, decode), COMPLETIONS, body, one_token)
    alone = await lab.post(prefill, COMPLETIONS, body)
    assert right.choice["text"] == alone.choice["text"]
    lost = {**one_token, "model": "base"}
    _, wrong = await lab.legs((prefill, decode), COMPLETIONS, body, lost)
    assert wrong.choice["text"] != alone.choice["text"]


async def test_profiling_is_there_only_where_it_is_configured(lab) -> None:
    with_it, without = lab.start("prefill", profiler="torch"), lab.start("prefill")
    for name, is_on in (("start_profile", True), ("stop_profile", False)):
        async with lab.http.post(f"{with_it.url}/{name}") as response:
            assert (response.status, await response.read()) == (200, b"")
        assert (await lab.state(with_it))["is_profiling"] is is_on
        async with lab.http.post(f"{without.url}/{name}") as response:
            assert response.status == 404


async def test_max_model_len_is_shown_and_held(lab) -> None:
    engine = lab.start("prefill", max_model_len=20)
    _, listed = await get(lab, engine, "/v1/models")
    assert listed["data"][0]["max_model_len"] == 20
    assert (await lab.post(engine, "/tokenize", {"prompt": "a"})).json["max_model_len"] == 20
    over = await lab.post(engine, COMPLETIONS, {"prompt": "a", "max_tokens": 21})
    assert over.error["message"] == (
        "max_tokens=21 cannot be greater than max_model_len=20. Please request fewer output "
        "tokens. (parameter=max_tokens, value=21)"
    )
    too_long = await lab.post(engine, COMPLETIONS, {"prompt": "a " * 21})
    assert "maximum context length is 20 tokens" in too_long.error["message"]


async def test_a_request_id_comes_from_header_then_body(lab) -> None:
    engine = lab.start("prefill")
    body = {"prompt": "a", "request_id": "own"}
    assert (await lab.post(engine, COMPLETIONS, body)).json["id"] == "cmpl-own"
    assert (await lab.post(engine, COMPLETIONS, body, X_Request_Id="h")).json["id"] == "cmpl-h"


@pytest.mark.parametrize(
    ("given", "models", "profiler"),
    [
        ([], ("sim-model",), ""),
        (["--model", "a", "--model=b", "--profiler"], ("a", "b"), "torch"),
        (["--model=a,b", "--model", "c", "--profiler=cuda"], ("a", "b", "c"), "cuda"),
    ],
)
async def test_models_and_profiler_on_the_command_line(
    monkeypatch, given, models, profiler
) -> None:
    """A model may be given again; a profiler without a name is torch."""
    made: list[SimOptions] = []
    monkeypatch.setattr("sidecar.sim.engine.run_engine", lambda options, _fd: made.append(options))
    assert main(["engine", "--role=prefill", *given]) == 0
    assert (made[0].models, made[0].profiler) == (models, profiler)
    assert main(engine_command(made[0])[3:]) == 0
    assert made[1] == made[0]


@pytest.mark.parametrize("model", ["", "a,", "a,,b", "a,a"])
async def test_wrong_models(model) -> None:
    with pytest.raises(OptionError, match="--model"):
        SimOptions(role="prefill", model=model)


async def test_a_dead_engine_answers_each_api_in_its_shape(lab) -> None:
    engine = lab.start("prefill", mode="WRITE")
    kill = {"prompt": "a", "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
    assert (await lab.post(engine, COMPLETIONS, kill)).status == 500
    message = {
        "model": "sim-model",
        "max_tokens": 1,
        "messages": [{"role": "user", "content": "a"}],
    }
    reply = await lab.post(engine, "/v1/messages", message)
    assert (reply.status, reply.error["type"]) == (500, "api_error")
    reply = await lab.post(engine, "/v1/embeddings", {"input": "a"})
    assert (reply.status, reply.error["type"]) == (500, "InternalServerError")
