"""Pooling routes and batches: small answers that follow from the input and the model."""

import base64
import struct

import pytest

from sidecar.sim.model import expected_text

pytestmark = pytest.mark.asyncio
BODIES = {
    "/v1/embeddings": {"input": ["a", "b"]},
    "/v2/embed": {"texts": ["a", "b"], "embedding_types": ["float", "ubinary"]},
    "/pooling": {"input": ["a", "b"]},
    "/classify": {"input": ["a", "b"]},
    "/score": {"queries": "q", "documents": ["a", "b"]},
    "/v1/score": {"text_1": "q", "text_2": ["a", "b"]},
    "/rerank": {"query": "q", "documents": ["a", "b"]},
    "/v1/rerank": {"query": "q", "documents": ["a", "b"]},
    "/v2/rerank": {"query": "q", "documents": ["a", "b"]},
}


def bare(answer):
    return {key: value for key, value in answer.items() if key not in ("id", "created", "model")}


async def test_answers_follow_from_input_and_model(lab) -> None:
    """The same again and on another engine; another for another input or an adapter."""
    one, other = lab.start("prefill", model="m,tuned"), lab.start("decode", mode="WRITE", model="m")
    for path, body in BODIES.items():
        first = await lab.post(one, path, body)
        assert (first.status, first.json["model"]) == (200, "m"), path
        assert bare((await lab.post(other, path, body)).json) == bare(first.json)
        tuned = await lab.post(one, path, {**body, "model": "tuned"})
        assert tuned.json["model"] == "tuned"
        assert bare(tuned.json) != bare(first.json)
        changed = {key: ["a", "c"] if value == ["a", "b"] else value for key, value in body.items()}
        assert bare((await lab.post(one, path, changed)).json) != bare(first.json)
    state = await lab.state(one)
    assert (state["ranks"]["plain"], state["running"]) == ([3 * len(BODIES)], 0)


async def test_the_shapes(lab) -> None:
    engine = lab.start("prefill")

    async def post(path, **more):
        return (await lab.post(engine, path, {**BODIES[path], **more}, X_Request_Id="r")).json

    found = await post("/v1/embeddings", dimensions=4)
    assert found["id"] == "embd-r"
    assert [one["index"] for one in found["data"]] == [0, 1]
    vector = found["data"][0]["embedding"]
    assert len(vector) == 4
    assert all(-1 <= number <= 1 for number in vector)
    packed = await post("/v1/embeddings", dimensions=4, encoding_format="base64")
    unpacked = struct.unpack("<4f", base64.b64decode(packed["data"][0]["embedding"]))
    assert unpacked == pytest.approx(vector, abs=1e-6)
    (one, _) = (await post("/classify"))["data"]
    assert sum(one["probs"]) == pytest.approx(1)
    assert one["label"] in ("LABEL_0", "LABEL_1")
    scores = [one["score"] for one in (await post("/score"))["data"]]
    ranked = (await post("/rerank"))["results"]
    assert [one["relevance_score"] for one in ranked] == sorted(scores, reverse=True)
    assert len((await post("/rerank", top_n=1))["results"]) == 1
    embedded = (await post("/v2/embed"))["embeddings"]
    assert len(embedded["float"]) == len(embedded["ubinary"]) == 2
    assert embedded["base64"] is None


async def test_refusals(lab) -> None:
    engine = lab.start("prefill")
    for path, body, status in (
        ("/v1/embeddings", {}, 400),
        ("/v1/embeddings", {"input": []}, 400),
        ("/v1/embeddings", {"input": "a", "model": "other"}, 404),
        ("/v1/embeddings", {"input": "a", "encoding_format": "x"}, 400),
        ("/v1/embeddings", {"input": "a", "normalize": True}, 400),
        ("/v1/embeddings", {"input": "a", "kv_transfer_params": {"do_remote_decode": True}}, 400),
        ("/score", {"queries": "a"}, 400),
        ("/score", {"queries": ["a", "b"], "documents": ["a", "b", "c"]}, 400),
        ("/rerank", {"query": "a"}, 400),
        ("/rerank", {"query": "a", "documents": ["b"], "top_n": -1}, 400),
        ("/v2/embed", {}, 400),
        ("/v2/embed", {"texts": ["a"], "embedding_types": ["int8"]}, 400),
    ):
        assert (await lab.post(engine, path, body)).status == status, (path, body)
    assert (await lab.state(engine))["rejected"] == 12


async def test_read_decode_before_0_33_garbles_them(lab) -> None:
    decode = lab.start("decode", version="0.32.0")
    for path, body in BODIES.items():
        answers = [bare((await lab.post(decode, path, body)).json) for _ in range(2)]
        assert answers[0] != answers[1], path


async def test_faults_and_records_are_those_of_plain_requests(lab) -> None:
    engine = lab.start("prefill")
    headers = {"retry-after": "7", "x-ratelimit-remaining-requests": "0"}
    fault = {"leg": "plain", "kind": "status", "status": 429, "headers": headers}
    await lab.control(engine, "faults", **fault)
    async with lab.http.post(f"{engine.url}/v1/embeddings", json={"input": "a"}) as response:
        assert response.status == 429
        assert {name: response.headers[name] for name in headers} == headers
    async with lab.http.get(f"{engine.url}/sim/last?leg=plain") as response:
        assert [one["path"] for one in await response.json()] == ["/v1/embeddings"]


BATCH = "/v1/chat/completions/batch"


async def test_a_batch_has_a_choice_for_each_conversation(lab) -> None:
    engine = lab.start("prefill")
    talks = [[{"role": "user", "content": text}] for text in ("hello", "<eos:3> you")]
    body = {"messages": talks, "max_tokens": 5, "stream": True}
    answer = (await lab.post(engine, BATCH, body)).json
    choices = answer["choices"]
    assert [choice["index"] for choice in choices] == [0, 1]
    texts = [expected_text("chat", {"messages": talk}, 5) for talk in talks]
    assert [choice["message"]["content"] for choice in choices] == texts
    assert [choice["finish_reason"] for choice in choices] == ["length", "stop"]
    assert answer["usage"] == {
        "prompt_tokens": 5,
        "completion_tokens": 8,
        "total_tokens": 13,
        "prompt_tokens_details": None,
        "completion_tokens_details": None,
    }


async def test_batches_that_are_refused(lab) -> None:
    engine = lab.start("prefill")
    talks = [[{"role": "user", "content": "hello"}]]
    kv = {"do_remote_decode": True, "transfer_id": "t"}
    for body in (
        {},
        {"messages": []},
        {"messages": [[]]},
        {"messages": talks[0]},
        {"messages": talks, "n": 2},
        {"messages": talks, "use_beam_search": True},
        {"messages": talks, "kv_transfer_params": kv},
    ):
        assert (await lab.post(engine, BATCH, body)).status == 400, body
