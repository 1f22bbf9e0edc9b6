"""Transcriptions and translations: words that follow from the file, in vLLM's shape."""

import io
import json
from typing import Any

import aiohttp
import pytest

pytestmark = pytest.mark.asyncio
TRANSCRIPTIONS, TRANSLATIONS = "/v1/audio/transcriptions", "/v1/audio/translations"
AUDIO = b"RIFF" + bytes(64_000)


async def post(lab, engine, path=TRANSCRIPTIONS, file: Any = AUDIO, **fields):
    """Status and text; `file` as a file unless it is a text."""
    with aiohttp.MultipartWriter("form-data") as form:
        for name, value in fields.items():
            form.append(value).set_content_disposition("form-data", name=name)
        if file is not None:
            part = form.append(file if isinstance(file, str) else io.BytesIO(file))
            more = {} if isinstance(file, str) else {"filename": "a.wav"}
            part.set_content_disposition("form-data", name="file", **more)
    async with lab.http.post(engine.url + path, data=form) as answer:
        return answer.status, await answer.text()


async def test_words_follow_from_the_file_and_the_model(lab) -> None:
    """The same on another engine; others for another file, path, field or adapter."""
    one, other = lab.start("prefill", model="m,tuned"), lab.start("decode", mode="WRITE", model="m")
    status, first = await post(lab, one, model="m")
    assert status == 200
    assert len(json.loads(first)["text"].split()) == 12
    assert json.loads(first)["usage"] == {"type": "duration", "seconds": 3}
    assert await post(lab, other) == (200, first)
    texts = {json.loads(first)["text"]}
    for path, given in (
        (TRANSCRIPTIONS, {"file": AUDIO + b"x"}),
        (TRANSCRIPTIONS, {"model": "tuned"}),
        (TRANSCRIPTIONS, {"language": "de"}),
        (TRANSLATIONS, {}),
    ):
        status, answer = await post(lab, one, path, **given)
        assert status == 200, answer
        texts.add(json.loads(answer)["text"])
    assert len(texts) == 5
    state = await lab.state(one)
    assert (state["ranks"]["plain"], state["errors"], state["running"]) == ([5], {}, 0)


@pytest.mark.parametrize("path", [TRANSCRIPTIONS, TRANSLATIONS])
async def test_a_stream_has_the_same_words(lab, path) -> None:
    """Event by event, and their number if it is asked for."""
    engine = lab.start("prefill")
    fields = {"max_completion_tokens": "3", "response_format": "text"}
    _, whole = await post(lab, engine, path, **fields)
    more = {"stream": "True", "stream_include_usage": "true"}
    status, raw = await post(lab, engine, path, **fields, **more)
    *lines, done = [line.removeprefix("data: ") for line in raw.splitlines() if line]
    assert (status, done) == (200, "[DONE]")
    *events, last = [json.loads(line) for line in lines]
    assert last["usage"]["completion_tokens"] == 3
    assert {one["object"] for one in events} == {path[10:-1] + ".chunk"}
    (*words, end) = [one["choices"][0] for one in events]
    assert "".join(one["delta"]["content"] for one in words) == json.loads(whole)["text"]
    assert (len(words), end["finish_reason"]) == (3, "stop")


@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({"file": None}, 400, "Field required"),
        ({"file": "text"}, 422, "file-like object"),
        ({"file": b""}, 400, "unsupported audio"),
        ({"file": bytes((25 << 20) + 1)}, 400, "Maximum file size exceeded"),
        ({"model": "other"}, 404, "`other` does not exist"),
        ({"stream": "perhaps"}, 400, "boolean"),
        ({"stream_include_usage": "true"}, 400, "stream=True"),
        ({"response_format": "srt"}, 400, "Currently only support"),
        ({"response_format": "x"}, 400, "response_format"),
        ({"max_completion_tokens": "x"}, 400, "integer"),
        ({"vllm_xargs": "{"}, 400, "Must be valid JSON"),
        ({"vllm_xargs": "[]"}, 400, "dictionary"),
    ],
)
async def test_refusals(lab, fields, status, words) -> None:
    """In OpenAI's shape, by the field."""
    got, answer = await post(lab, lab.start("prefill"), **fields)
    assert (got, json.loads(answer)["error"]["code"]) == (status, status)
    assert words in json.loads(answer)["error"]["message"]


async def test_a_body_that_is_no_form_has_no_file(lab) -> None:
    """As FastAPI has it; and a form that cannot be read is 400."""
    engine = lab.start("prefill")
    for kind, body in (
        ("application/json", b"{}"),
        ("multipart/form-data; boundary=b", b"nonsense"),
        ("multipart/form-data", b""),
    ):
        url, headers = engine.url + TRANSCRIPTIONS, {"Content-Type": kind}
        async with lab.http.post(url, data=body, headers=headers) as answer:
            assert answer.status == 400, kind
    data = {"file": "text", "model": "m"}
    async with lab.http.post(engine.url + TRANSCRIPTIONS, data=data) as answer:
        assert answer.status == 422


async def test_kv_parameters_in_a_form_are_an_error_of_the_engine(lab) -> None:
    """As was seen on vLLM 0.32: 500, and it serves the next. Parameters of its own are taken."""
    engine = lab.start("prefill")
    status, _ = await post(lab, engine, vllm_xargs='{"session_id": "7"}')
    assert status == 200
    forged = '{"kv_transfer_params": "x"}'
    assert (await post(lab, engine, vllm_xargs=forged))[0] == 500
    assert (await post(lab, engine))[0] == 200
    state = await lab.state(engine)
    assert (state["errors"], state["is_dead"]) == ({"kv_params_in_xargs": 1}, False)


async def test_a_read_decode_engine_before_0_33_garbles(lab) -> None:
    """As whatever else runs the model without a transfer."""
    engine = lab.start("decode", version="0.32.0")
    assert await post(lab, engine) != await post(lab, engine)
    assert (await lab.state(engine))["errors"] == {"garbled_plain": 2}
