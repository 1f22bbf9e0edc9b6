"""Every way of HTTP to send a request and to carry an answer, on every way through the router."""

import hashlib

import pytest

from tests.requests.raw_http import chunked, request
from tests.requests.scripted_engine import Got, Wire, answer, stream
from tests.requests.transport_h2 import H2Client
from tests.requests.transport_stack import JSON, PATH, WAYS, Wired, prompt

pytestmark = pytest.mark.e2e
every_way = pytest.mark.parametrize("way", WAYS)
SERVED = b'{"served": true}'
CHUNKED = "Transfer-Encoding: chunked"


def echo(wire: Wire, got: Got) -> None:
    """Answers with the prompt that came."""
    answer(got.json["prompt"].encode())(wire, got)


@every_way
def test_a_connection_is_kept_for_the_next_request(wired: Wired, way: str) -> None:
    """Five in a row, also after a refusal."""
    with wired.client() as client:
        for i in range(5):
            if i == 2:
                client.send(request("GET /v1/completions"))
                assert client.answer().status == 405
            client.send(request(f"POST {PATH[way]}", JSON, body=prompt(way)))
            assert client.answer().body == SERVED


@every_way
def test_a_connection_that_will_be_closed_says_so(wired: Wired, way: str) -> None:
    """When the client asked for it, and after a 400, which Envoy takes for a client gone astray."""
    with wired.client() as client:
        client.send(request(f"POST {PATH[way]}", JSON, "Connection: close", body=prompt(way)))
        assert client.answer().get("connection") == "close"
        assert client.is_closed()
    with wired.client() as client:
        client.send(request("POST /v1/completions", JSON, body=b"no JSON"))
        assert client.answer().get("connection") == "close"
        assert client.is_closed()


def test_pipelined_requests_are_answered_in_order(wired: Wired) -> None:
    """All are sent before the first answer is read; ways and engines differ."""
    for engine in wired.engines:
        engine.script = echo
    ways = [*WAYS, *reversed(WAYS), "pd"]
    sent = [
        request(f"POST {PATH[w]}", JSON, body=prompt(w, prompt=f"{w}{i}"))
        for i, w in enumerate(ways)
    ]
    with wired.client() as client:
        client.send(b"".join(sent))
        answers = [client.answer().body.decode() for _ in ways]
    assert answers == [f"{w}{i}" for i, w in enumerate(ways)]


def test_http_2_with_prior_knowledge_carries_many_streams(wired: Wired) -> None:
    """Sixty at once on one connection, each with its own answer."""
    for engine in wired.engines:
        engine.script = echo
    with H2Client(wired.url) as client:
        ways = [WAYS[i % len(WAYS)] for i in range(60)]
        streams = [
            client.post(PATH[way], prompt(way, prompt=f"number {i}")) for i, way in enumerate(ways)
        ]
        answers = [client.answer(stream) for stream in streams]
    assert [a.status for a in answers] == [200] * 60
    assert [a.body for a in answers] == [b"number %d" % i for i in range(60)]


@every_way
def test_a_chunked_upload_arrives_whole(wired: Wired, way: str) -> None:
    """In chunks of any size, with an extension that means nothing."""
    body = prompt(way, prompt="x" * 5000)
    parts = chunked(body[:1]) + b"%x;a=b\r\n" % (len(body) - 1) + body[1:] + b"\r\n0\r\n\r\n"
    got = wired.ask(request(f"POST {PATH[way]}", JSON, CHUNKED, body=parts, length=False))
    assert got.body == SERVED
    assert {one.json["prompt"] for one in wired.got} == {"x" * 5000}


@every_way
def test_expect_100_continue_is_answered_before_the_body(wired: Wired, way: str) -> None:
    """`curl` waits for it with a large body; no engine is asked for it."""
    body = prompt(way)
    expect = ("Expect: 100-continue", f"Content-Length: {len(body)}")
    with wired.client() as client:
        client.send(request(f"POST {PATH[way]}", JSON, *expect))
        assert client.head().first == "HTTP/1.1 100 Continue"
        client.send(body)
        assert client.answer().body == SERVED
    assert not [one for one in wired.got if one.head.values("expect")]


@every_way
def test_trailers_of_a_request_are_accepted(wired: Wired, way: str) -> None:
    """In HTTP/1 after the last chunk, in HTTP/2 as headers after the data; no engine gets them."""
    last = b"0\r\nx-checksum: 1\r\nx-data-parallel-rank: 7\r\n\r\n"
    body = chunked(prompt(way)) + last
    announced = "Trailer: x-checksum"
    sent = request(f"POST {PATH[way]}", JSON, CHUNKED, announced, body=body, length=False)
    assert wired.ask(sent).body == SERVED
    with H2Client(wired.url) as client:
        opened = client.open("POST", PATH[way], ("content-type", "application/json"))
        client.send(opened, prompt(way), ends=False)
        client.trailers(opened, ("x-checksum", "1"), ("x-data-parallel-rank", "7"))
        assert client.answer(opened).body == SERVED
    assert wired.got
    assert not [one for one in wired.got if one.trailers]
    assert not [one for one in wired.got if one.head.values("x-data-parallel-rank")]


@every_way
def test_an_answer_with_trailers_is_whole_without_them(wired: Wired, way: str) -> None:
    """vLLM sends none, and clients of HTTP/1 drop them too."""
    wired.script(way, stream(b"data: 1\n\n", b"data: 2\n\n", trailers=b"x-after: 1\r\n"))
    got = wired.post(way)
    assert (got.status, got.body) == (200, b"data: 1\n\ndata: 2\n\n")
    assert got.trailers == ()


@every_way
@pytest.mark.parametrize(
    "status",
    ["201 Created", "400 Bad Request", "404 Not Found", "409 Conflict", "418 Teapot",
     "422 Unprocessable", "429 Too Many", "500 Internal", "501 No", "503 Busy", "529 Overloaded"],
)  # fmt: skip
def test_an_engines_status_headers_and_body_pass_unchanged(
    wired: Wired, way: str, status: str
) -> None:
    """A status nobody knows too; what it says of limits; its very bytes."""
    said = {
        "content-type": "application/json; charset=utf-8",
        "retry-after": "17",
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-tokens": "149984",
        "x-ratelimit-reset-tokens": "6m0s",
        "openai-processing-ms": "12",
        "server": "uvicorn",
        "x-odd": "a  b; c=\"d\"",
    }  # fmt: skip
    lines = "".join(f"{name}: {value}\r\n" for name, value in said.items())
    cookies = "set-cookie: a=1\r\nset-cookie: b=2\r\n"
    body = b'{"error":{"message":"\xc3\xa4 no",  "code": 1}}\n'
    wired.script(way, answer(body, status, (lines + cookies).encode()))
    got = wired.post(way)
    assert got.status == int(status[:3])
    assert got.body == body
    assert {name: got.get(name) for name in said} == said
    assert got.head.values("set-cookie") == ["a=1", "b=2"]
    assert got.get("x-pd-error") is None


@every_way
def test_an_answer_without_a_body_or_a_type_passes(wired: Wired, way: str) -> None:
    """204, and 200 with nothing."""
    wired.script(way, lambda wire, _got: wire.send(b"HTTP/1.1 204 No Content\r\n\r\n"))
    assert (got := wired.post(way)).status == 204
    assert got.get("content-type") is None
    wired.script(way, answer(b"", headers=b""))
    assert (wired.post(way).status, wired.post(way).body) == (200, b"")


@every_way
@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_large_answer_is_byte_exact(wired: Wired, way: str, is_chunked: bool) -> None:
    """Ten million bytes of every value."""
    body = bytes(range(256)) * 39_063
    parts = [body[i : i + 100_001] for i in range(0, len(body), 100_001)]
    wired.script(way, stream(*parts) if is_chunked else answer(body))
    got = wired.post(way)
    assert got.status == 200
    assert hashlib.sha256(got.body).digest() == hashlib.sha256(body).digest()


@every_way
def test_an_answer_that_the_engine_ends_by_closing_is_whole(wired: Wired, way: str) -> None:
    """As a server of HTTP/1.0 does; the client's own connection stays."""

    def close_at_end(wire: Wire, _got: Got) -> None:
        wire.send(b"HTTP/1.0 200 OK\r\ncontent-type: text/plain\r\n\r\nall of it")
        wire.close()

    wired.script(way, close_at_end)
    got = wired.post(way)
    assert (got.status, got.body) == (200, b"all of it")
    assert got.get("transfer-encoding") == "chunked"


@pytest.mark.parametrize("path", ["/health", "/ping", "/v1/models"])
def test_head_is_answered_as_get_without_its_body(wired: Wired, path: str) -> None:
    """For health checkers. The connection is good for the next request."""
    with wired.client() as client:
        client.send(request(f"HEAD {path}"))
        assert client.answer(is_to_head=True).status == 200
        client.send(request(f"GET {path}"))
        assert client.answer().status == 200


@every_way
def test_http_10_is_served_and_closed(wired: Wired, way: str) -> None:
    """With no host, as `ab` without its options."""
    sent = request(f"POST {PATH[way]}", JSON, body=prompt(way), host="")
    with wired.client() as client:
        client.send(sent.replace(b"HTTP/1.1", b"HTTP/1.0"))
        got = client.answer()
        assert (got.status, got.body) == (200, SERVED)
        assert client.is_closed()


@every_way
def test_http_10_gets_a_streamed_answer_ended_by_the_close(wired: Wired, way: str) -> None:
    """It knows no chunks, so there are none."""
    wired.script(way, stream(b"data: 1\n\n", b"data: [DONE]\n\n"))
    sent = request(f"POST {PATH[way]}", JSON, body=prompt(way, stream=True), host="")
    got = wired.ask(sent.replace(b"HTTP/1.1", b"HTTP/1.0"))
    assert got.get("transfer-encoding") is None
    assert got.get("content-length") is None
    assert got.body == b"data: 1\n\ndata: [DONE]\n\n"


@every_way
def test_an_upgrade_to_h2c_is_not_taken_up(wired: Wired, way: str) -> None:
    """The request is served in HTTP/1.1, which the protocol allows; no engine is asked to."""
    got = wired.post(
        way, "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk"
    )
    assert (got.status, got.body) == (200, SERVED)
    names = {name for one in wired.got for name, _ in one.head.fields}
    assert not names & {"upgrade", "http2-settings"}
