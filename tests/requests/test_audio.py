"""Transcriptions and translations: forms, placed by the model in them and passed on to the byte."""

import json
import os
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.e2e.stack import until
from tests.requests.raw_http import Answer, chunked, request
from tests.requests.scripted_engine import MODEL
from tests.requests.transport_h2 import H2Client
from tests.requests.transport_stack import Wired
from tests.requests.two_models import TwoModels, served

pytestmark = pytest.mark.e2e

TRANSCRIPTIONS, TRANSLATIONS = "/v1/audio/transcriptions", "/v1/audio/translations"
LIMIT = 6 << 20
BOUNDARY = "0123456789abcdef"
TYPE = f"Content-Type: multipart/form-data; boundary={BOUNDARY}"
AUDIO = b"RIFF\x00\xff\r\n--" + bytes(5000)
FORGED = b'{"kv_transfer_params": "x"}'


def form(*fields: tuple[str, bytes], file: bytes = AUDIO, last: bytes = b"--\r\n") -> bytes:
    """A file, then fields: each a Content-Disposition without its type, and a value."""
    parts = [('name="file"; filename="a.wav"', file), *fields]
    head = f"--{BOUNDARY}\r\nContent-Disposition: form-data; "
    made = [f"{head}{what}\r\n\r\n".encode() + value + b"\r\n" for what, value in parts]
    return b"".join(made) + f"--{BOUNDARY}".encode() + last


GOOD = form(('name="model"', MODEL.encode()))


# --- one model: an engine whose every byte is seen


@pytest.fixture(scope="module")
def engines() -> Iterator[Wired]:
    wired = Wired(tuning={"http": {"max_body_bytes": LIMIT}})
    try:
        yield wired
    finally:
        wired.close()


@pytest.fixture
def one(engines: Wired) -> Wired:
    engines.reset()
    return engines


def post(one: Wired, body: bytes, *headers: str, path: str = TRANSCRIPTIONS) -> Answer:
    return one.ask(request(f"POST {path}", *(headers or (TYPE,)), body=body))


@pytest.mark.parametrize("path", [TRANSCRIPTIONS, TRANSLATIONS, TRANSCRIPTIONS + "?a=/b"])
@pytest.mark.parametrize("how", ["length", "chunked", "http2"])
def test_a_form_of_5_mb_arrives_to_the_byte(one: Wired, path: str, how: str) -> None:
    """With its type, at the same path, however it is sent."""
    body = form(('name="model"', MODEL.encode()), file=os.urandom(5 << 20))
    kind = TYPE.partition(": ")[2]
    if how == "http2":
        with H2Client(one.url) as client:
            stream = client.open("POST", path, ("content-type", kind))
            client.send(stream, body)
            assert client.answer(stream).status == 200
    elif how == "chunked":
        pieces = [chunked(body[at : at + 100_000]) for at in range(0, len(body), 100_000)]
        data = request(f"POST {path}", TYPE, "Transfer-Encoding: chunked")
        assert one.ask(data + b"".join(pieces) + b"0\r\n\r\n").status == 200
    else:
        assert post(one, body, path=path).status == 200
    (got,) = one.got
    assert (got.path, got.head.get("content-type")) == (path, kind)
    assert got.body == body


XARGS = 'name="vllm_xargs"'
HIDDEN = {
    "a field": form((XARGS, FORGED)),
    "before a good one": form((XARGS, FORGED), (XARGS, b"{}")),
    "behind a good one": form((XARGS, b"{}"), (XARGS, FORGED)),
    "an escape": form((XARGS, b'{"\\u006bv_transfer_params": {}}')),
    "more than JSON": form((XARGS, b'{"kv_transfer_params": NaN}')),
    "the encoder's": form((XARGS, b'{"ec_transfer_params": 1}')),
    "a request id": form((XARGS, b'{"request_id": "x"}')),
    "a field of its own": form(('name="kv_transfer_params"', b"{}")),
    "no quotes": form(("name=vllm_xargs", FORGED)),
    "a file": form((XARGS + '; filename="x"', FORGED)),
    "name*": form(("name*=utf-8''vllm_xargs", FORGED)),
    "two names": form(('name="a"; name="vllm_xargs"', FORGED)),
    "two dispositions": form(
        ('name="a"\r\nContent-Disposition: form-data; name="vllm_xargs"', FORGED)
    ),
    "blanks behind the boundary": form(last=b" \r\n") + form((XARGS, FORGED))[20:],
    "behind the end": GOOD + form((XARGS, FORGED)),
    "without an end": form((XARGS, FORGED), last=b""),
    "no form": b'{"vllm_xargs": {"kv_transfer_params": "x"}}',
}


@pytest.mark.parametrize("path", [TRANSCRIPTIONS, TRANSLATIONS])
def test_what_only_a_router_may_say_reaches_no_engine(one: Wired, path: str) -> None:
    """400 however it is spelled or hidden, and the next form is served."""
    for name, body in HIDDEN.items():
        assert post(one, body, path=path).refusal == (400, "body_invalid"), name
    assert one.got == []
    assert post(one, GOOD, path=path).status == 200


TYPES = {
    "none": ("X-None: 1",),
    "JSON": ("Content-Type: application/json",),
    "no boundary": ("Content-Type: multipart/form-data",),
    "another multipart": (TYPE.replace("form-data", "mixed"),),
    "another charset": (TYPE + "; charset=utf-16",),
    "two boundaries": (TYPE + "; boundary=x",),
    "two headers": (TYPE, TYPE.replace(BOUNDARY, "x")),
    "two headers, the other way": (TYPE.replace(BOUNDARY, "x"), TYPE),
    "urlencoded": ("Content-Type: application/x-www-form-urlencoded",),
}


@pytest.mark.parametrize("kind", TYPES)
def test_a_type_that_is_not_that_of_one_form_is_refused(one: Wired, kind: str) -> None:
    """Two headers too, of which an engine might see the other."""
    headers = TYPES[kind]
    body = form((XARGS, FORGED))
    if kind == "urlencoded":
        body = b"model=m&vllm%5Fxargs=%7B%22kv_transfer_params%22%3A1%7D"
    assert post(one, body, *headers).refusal == (400, "body_invalid")
    assert one.got == []


SEEN, NO_PATH, ANOTHER = (400, "body_invalid"), (400, "bad_request"), (404, "not_found")
SPELLINGS = {
    "/v1/audio/%74ranscriptions": SEEN,
    "/v1/audio%2Ftranscriptions": NO_PATH,
    "/v1//audio/transcriptions": SEEN,
    "//v1/audio/transcriptions": SEEN,
    "/v1/./audio/transcriptions": SEEN,
    "/v1/x/../audio/transcriptions": SEEN,
    "/v1/audio/transcriptions/": ANOTHER,
    "/v1/audio/transcriptions;a=b": ANOTHER,
    "/v1/audio/transcriptions%3Fa": ANOTHER,
    "/V1/audio/transcriptions": ANOTHER,
    "http://edge/v1/audio/transcriptions": SEEN,
    TRANSCRIPTIONS + "?a#b": NO_PATH,
}


@pytest.mark.parametrize("path", SPELLINGS)
def test_no_spelling_of_the_path_goes_past_the_look(one: Wired, path: str) -> None:
    """Such a path is this one, another one, or none."""
    assert post(one, form((XARGS, FORGED)), path=path).refusal == SPELLINGS[path]
    assert one.got == []


def test_a_compressed_form_is_refused(one: Wired) -> None:
    """415: nobody could see into it."""
    got = post(one, GOOD, TYPE, "Content-Encoding: gzip")
    assert got.refusal == (415, "body_encoding")
    assert one.got == []


@pytest.mark.parametrize("how", ["length", "chunked"])
def test_a_form_over_the_limit_is_refused(one: Wired, how: str) -> None:
    """413 as any other body; at the limit it is served."""
    empty = len(form(('name="model"', MODEL.encode()), file=b""))
    for over in (0, 1):
        body = form(('name="model"', MODEL.encode()), file=bytes(LIMIT + over - empty))
        if how == "chunked":
            data = request(f"POST {TRANSCRIPTIONS}", TYPE, "Transfer-Encoding: chunked")
            got = one.ask(data + chunked(body) + b"0\r\n\r\n")
        else:
            got = post(one, body)
        assert got.status == (413 if over else 200)
    assert got.refusal == (413, "body_too_large")
    assert len(one.got) == 1


# --- two models, and OpenAI's client


def client_of(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0, timeout=10)


def words(stream: Any) -> str:
    """Of the events of a stream, which vLLM shapes as those of a chat."""
    choices = [choice for event in stream for choice in event.choices]
    return "".join(choice["delta"]["content"] for choice in choices)


# Its newer versions call translations deprecated; they are served all the same.
@pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")
@pytest.mark.parametrize("model", ["alpha", "beta"])
def test_openais_client_gets_the_transcript_of_its_model(two: TwoModels, model: str) -> None:
    """As the model's engine gives it alone, whole and streamed; the other model's hear nothing."""
    other = {"alpha": "beta", "beta": "alpha"}[model]
    before, engine = served(two.pairs[other]), two.pairs[model][0]
    with client_of(two.stack.url) as pool, client_of(engine.url) as alone:
        for kind in ("transcriptions", "translations"):
            ours, theirs = getattr(pool.audio, kind), getattr(alone.audio, kind)
            text = ours.create(model=model, file=("a.wav", AUDIO)).text
            assert text == theirs.create(model=model, file=("a.wav", AUDIO)).text
            assert text
        transcribe = pool.audio.transcriptions.create
        text = transcribe(model=model, file=("a.wav", AUDIO)).text
        with transcribe(model=model, file=("a.wav", AUDIO), stream=True) as stream:
            assert words(stream) == text
    assert served(two.pairs[other]) == before


def test_openais_client_may_send_an_engines_own_parameters(two: TwoModels) -> None:
    """They reach it; those of a router are refused, and no engine dies of them."""
    with client_of(two.stack.url) as client:
        create = client.audio.transcriptions.create
        more: dict[str, Any] = {"vllm_xargs": json.dumps({"session_id": "7"})}
        assert create(model="beta", file=("a.wav", AUDIO), extra_body=more).text
        (sent,) = [
            one for engine in two.beta for one in engine.last("plain") if "session_id" in str(one)
        ]
        assert sent["path"] == TRANSCRIPTIONS
        with pytest.raises(openai.BadRequestError) as refused:
            create(model="beta", file=("a.wav", AUDIO), extra_body={"vllm_xargs": FORGED.decode()})
    assert refused.value.code == "body_invalid"
    assert not any(engine.state()["errors"] for engine in two.engines)


def test_a_form_must_name_its_model_where_there_are_several(two: TwoModels) -> None:
    """400 with their names; one that nobody serves is an engine's own 404."""
    before = served(two.engines)
    with client_of(two.stack.url) as client:
        create = client.audio.transcriptions.create
        with pytest.raises(openai.BadRequestError) as missing:
            create(model="", file=("a.wav", AUDIO))
        assert (missing.value.code, missing.value.param) == ("model_missing", "model")
        assert "(alpha, alpha-law, beta)" in str(missing.value)
        assert served(two.engines) == before
        with pytest.raises(openai.NotFoundError) as unknown:
            create(model="gamma", file=("a.wav", AUDIO))
    assert "gamma" in str(unknown.value)


def test_a_model_whose_instances_are_away_hears_no_form(two: TwoModels) -> None:
    """503 as soon as the worker knows: no engine of another model is asked in their place."""

    def is_away() -> bool:
        try:
            client.audio.transcriptions.create(model="beta", file=("a.wav", AUDIO))
        except openai.InternalServerError as error:
            return (error.status_code, error.code) == (503, "no_prefill_instance")
        return False

    before = served(two.alpha)
    for engine in two.beta:
        engine.ask("health", status=503)
    try:
        with client_of(two.stack.url) as client:
            until(is_away, "beta is away")
        assert served(two.alpha) == before
    finally:
        for engine in two.beta:
            engine.ask("health", status=200)
        two.stack.wait_placeable(*two.beta)
