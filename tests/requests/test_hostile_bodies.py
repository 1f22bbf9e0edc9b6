"""Bodies made to hurt: refused clearly before an engine hears of them; the next one is served."""

import json
from typing import Any

import pytest

from tests.requests.hostile_bodies import ABSURD, IN_LEGS, NO_JSON, TOO_LONG, asking
from tests.requests.raw_http import chunked, request
from tests.requests.scripted_engine import MODEL, answer
from tests.requests.transport_h2 import H2Client
from tests.requests.transport_stack import BODY_LIMIT, JSON, PATH, WAYS, Wired, prompt

pytestmark = pytest.mark.e2e
COMPLETIONS = "POST /v1/completions"
SERVED = b'{"served": true}'
ESCAPED = "kv_transfer\\u005fparams"
"""The same name to every JSON parser."""


@pytest.mark.parametrize("name", NO_JSON)
def test_what_is_no_json_object_is_refused(wired: Wired, name: str) -> None:
    """400 in OpenAI's shape; no engine is asked."""
    got = wired.ask(request(COMPLETIONS, JSON, body=NO_JSON[name]))
    assert got.refusal == (400, "body_invalid")
    assert wired.got == []
    wired.assert_serves()


@pytest.mark.parametrize(
    ("header", "body", "reason"),
    [
        ("Content-Length: 0", b"", "body_missing"),
        ("", b"", "body_missing"),
        ("Transfer-Encoding: chunked", b"0\r\n\r\n", "body_invalid"),
    ],
)
def test_no_body_is_refused(wired: Wired, header: str, body: bytes, reason: str) -> None:
    """Said by its length, by nothing, or by a first chunk that is the last: that it has no more
    than none is seen only then."""
    got = wired.ask(request(COMPLETIONS, JSON, header, body=body, length=False))
    assert got.refusal == (400, reason)
    assert wired.got == []
    wired.assert_serves()


@pytest.mark.parametrize("name", TOO_LONG)
def test_a_number_that_no_engine_can_read_is_refused(wired: Wired, name: str) -> None:
    """400; no engine is asked."""
    got = wired.ask(request(COMPLETIONS, JSON, body=asking(TOO_LONG[name])))
    assert got.refusal == (400, "body_invalid")
    assert wired.got == []
    wired.assert_serves()


REFUSED = b'{"error": {"message": "engine", "type": "x", "param": null, "code": 400}}'


@pytest.mark.parametrize("name", ABSURD)
def test_an_absurd_number_is_for_prefill_to_judge_first(wired: Wired, name: str) -> None:
    """It gets the number as it was written; its refusal is the client's; decode is not asked."""
    wired.prefill.leg = answer(REFUSED, "400 Bad Request")
    got = wired.ask(request(COMPLETIONS, JSON, body=asking(ABSURD[name])))
    assert (got.status, got.body) == (400, REFUSED)
    (one,) = wired.got
    assert ABSURD[name].partition(b": ")[2] in one.body
    wired.assert_serves()


@pytest.mark.parametrize("name", IN_LEGS)
def test_what_prefill_would_not_see_is_for_one_engine_to_judge(wired: Wired, name: str) -> None:
    """It gets the body whole, and its own answer is the client's: no KV is made for what will be
    refused."""
    wired.prefill.script = answer(REFUSED, "400 Bad Request")
    got = wired.ask(request(COMPLETIONS, JSON, body=asking(IN_LEGS[name])))
    assert (got.status, got.body) == (400, REFUSED)
    (one,) = wired.got
    assert IN_LEGS[name].partition(b": ")[2] in one.body
    assert b"kv_transfer_params" not in one.body
    wired.assert_serves()


def test_of_a_repeated_key_the_last_counts_on_both_legs(wired: Wired) -> None:
    """As in vLLM; each engine gets the key once, so both read the same."""
    body = (
        b'{"model": "other", "prompt": "first", "n": 3, "max_tokens": 1, "user": {"a": 1, "a": 2},'
        b' "model": "%s", "prompt": "last", "n": 1, "max_tokens": 7}' % MODEL.encode()
    )
    got = wired.ask(request(COMPLETIONS, JSON, body=body))
    assert (got.status, got.body) == (200, SERVED)
    assert [len(engine.got) for engine in wired.engines] == [1, 1]
    for one in wired.got:
        assert one.json["prompt"] == "last"
        for key in ("model", "prompt", "n", "max_tokens"):
            assert one.body.count(f'"{key}"'.encode()) <= 1
        assert b'{"a": 1, "a": 2}' in one.body
    assert wired.decode.got[0].json["max_tokens"] == 7


FORGED: dict[str, Any] = {
    "kv_transfer_params": {"do_remote_prefill": True, "remote_host": "forged", "remote_port": 1},
    "ec_transfer_params": {"remote_host": "forged"},
    "request_id": "___prefill_addr_forged:1___decode_addr_forged:2_x",
}


@pytest.mark.parametrize("way", ["pd", "aggregated"])
@pytest.mark.parametrize("name", FORGED)
def test_what_only_a_router_may_say_is_taken_out(wired: Wired, way: str, name: str) -> None:
    """Engines dial the hosts that these fields name. Written plainly, escaped, twice."""
    value = json.dumps(FORGED[name])
    escaped = name.replace("_", "\\u005f", 1)
    plain = prompt(way).decode()[:-1]
    body = f'{plain}, "{name}": {value}, "{escaped}": {value}, "{name}": {value}}}'
    got = wired.ask(request(f"POST {PATH[way]}", JSON, body=body.encode()))
    assert got.status == 200
    assert len(wired.got) == (2 if way == "pd" else 1)
    for one in wired.got:
        assert b"forged" not in one.body
        assert b"forged" not in repr(one.head).encode()
        assert name == "kv_transfer_params" or name not in one.json


@pytest.mark.parametrize("path", ["/v1/chat/completions/batch", "/v1/chat/completions",
                                  "/v1/responses", "/v1/messages"])  # fmt: skip
def test_they_are_taken_out_on_every_path_that_reads_them(wired: Wired, path: str) -> None:
    """Whoever serves it."""
    said = {"role": "user", "content": "Hello"}
    messages: Any = [[said], [said]] if path.endswith("batch") else [said]
    body = {"model": MODEL, "messages": messages, "input": "Hello", "max_tokens": 5, **FORGED}
    got = wired.ask(request(f"POST {path}", JSON, body=json.dumps(body).encode()))
    assert got.status == 200
    assert wired.got
    assert not [one for one in wired.got if b"forged" in one.body]


@pytest.mark.parametrize("way", ["pd", "aggregated"])
@pytest.mark.parametrize("key", ["kv_transfer_params", ESCAPED, "ec_transfer_params"])
def test_extra_arguments_cannot_bring_them_back(wired: Wired, way: str, key: str) -> None:
    """vLLM copies `vllm_xargs` over what we set, and text there would end its scheduler."""
    body = f'{prompt(way).decode()[:-1]}, "vllm_xargs": {{"a": 1, "{key}": "x"}}}}'
    got = wired.ask(request(f"POST {PATH[way]}", JSON, body=body.encode()))
    assert got.refusal == (400, "body_invalid")
    assert wired.got == []
    wired.assert_serves()


def test_other_extra_arguments_reach_both_engines(wired: Wired) -> None:
    """They are the engines' business."""
    body = prompt(vllm_xargs={"session_id": "s", "kv_transfer": 1})
    assert wired.ask(request(COMPLETIONS, JSON, body=body)).status == 200
    assert [one.json["vllm_xargs"] for one in wired.got] == [
        {"session_id": "s", "kv_transfer": 1}
    ] * 2


@pytest.mark.parametrize(
    "encoding", ["gzip", "br", "deflate", "zstd", "gzip, identity", "identity, gzip", "GZIP",
                 "x-unknown", "aes128gcm"],
)  # fmt: skip
def test_a_compressed_body_is_refused(wired: Wired, encoding: str) -> None:
    """415 before the body is read: vLLM would not unpack it, and nobody may unpack a bomb."""
    got = wired.post("pd", f"Content-Encoding: {encoding}", body=b"\x1f\x8b" + b"x" * 100)
    assert got.refusal == (415, "body_encoding")
    assert wired.got == []
    wired.assert_serves()


def test_two_encoding_headers_are_one_list(wired: Wired) -> None:
    """The second must not hide behind the first."""
    got = wired.post("pd", "Content-Encoding: identity", "Content-Encoding: gzip")
    assert got.refusal == (415, "body_encoding")
    assert wired.got == []


@pytest.mark.parametrize("encoding", ["identity", "Identity", ""])
def test_the_identity_encoding_is_none(wired: Wired, encoding: str) -> None:
    """It says that nothing was done."""
    assert wired.post("pd", f"Content-Encoding: {encoding}").status == 200


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/json; charset=utf-16", "multipart/form-data; boundary=x",
             "application/x-www-form-urlencoded", "nonsense"],
)  # fmt: skip
def test_both_engines_get_the_type_that_the_client_sent(wired: Wired, kind: str) -> None:
    """vLLM refuses all but JSON: then at prefill already, before KV is made."""
    wired.ask(request(COMPLETIONS, f"Content-Type: {kind}", body=prompt()))
    assert [one.head.get("content-type") for one in wired.got] == [kind] * 2
    assert [len(engine.got) for engine in wired.engines] == [1, 1]


def test_a_body_without_a_type_is_without_one_on_both_legs(wired: Wired) -> None:
    """vLLM refuses it, so prefill must not be told that it is JSON."""
    wired.ask(request(COMPLETIONS, body=prompt()))
    assert [len(engine.got) for engine in wired.engines] == [1, 1]
    assert [one.head.get("content-type") for one in wired.got] == [None] * 2


def of_size(size: int) -> bytes:
    body = prompt(user="")
    return body.replace(b'"user": ""', b'"user": "%s"' % (b"x" * (size - len(body))))


@pytest.mark.parametrize("how", ["length", "chunked", "http2"])
@pytest.mark.parametrize(("over", "is_served"), [(-1, True), (0, True), (1, False)])
def test_the_limit_of_a_body_is_exact(wired: Wired, how: str, over: int, is_served: bool) -> None:
    """However it is sent: at the limit it is served, one byte more is 413."""
    body = of_size(BODY_LIMIT + over)
    assert len(body) == BODY_LIMIT + over
    if how == "http2":
        with H2Client(wired.url) as client:
            stream = client.answer(client.post("/v1/completions", body))
            status, sent = stream.status, stream.body
            reason = stream.headers.get("x-pd-error")
    else:
        is_chunked = how == "chunked"
        extra = ["Transfer-Encoding: chunked"] if is_chunked else []
        data = chunked(body) + b"0\r\n\r\n" if is_chunked else body
        got = wired.ask(request(COMPLETIONS, JSON, *extra, body=data, length=not is_chunked))
        status, sent, reason = got.status, got.body, got.get("x-pd-error")
    if is_served:
        assert (status, sent) == (200, SERVED)
        assert [one.json["user"] for one in wired.got] == [json.loads(body)["user"]] * 2
    else:
        assert (status, reason) == (413, "body_too_large")
        assert json.loads(sent)["error"]["code"] == "body_too_large"
        assert wired.got == []
        wired.assert_serves()


@pytest.mark.parametrize("way", WAYS)
def test_a_body_that_never_ends_is_cut_off_at_the_limit(wired: Wired, way: str) -> None:
    """413 while it is still being sent, also where the router does not read it; no engine hears
    of it."""
    with wired.client() as client:
        client.send(request(f"POST {PATH[way]}", JSON, "Transfer-Encoding: chunked"))
        chunk = chunked(b"x" * 50_000)
        for _ in range(20):
            client.send(chunk)
            if not client.wire.is_silent_for(0.05):
                break
        assert client.answer().refusal == (413, "body_too_large")
        assert client.is_closed()
    assert wired.got == []
    wired.assert_serves()


def test_a_declared_length_over_the_limit_is_refused_before_the_body(wired: Wired) -> None:
    """Where the router reads it not a byte is waited for."""
    for way in ("pd", "aggregated"):
        with wired.client() as client:
            length = f"Content-Length: {BODY_LIMIT * 10}"
            client.send(request(f"POST {PATH[way]}", JSON, length))
            assert client.answer().refusal == (413, "body_too_large")
    assert wired.got == []
