"""Headers that a client has no business to send: they change nothing, and no engine gets them."""

import pytest

from tests.requests.raw_http import request
from tests.requests.scripted_engine import answer
from tests.requests.transport_h2 import H2Client
from tests.requests.transport_stack import JSON, PATH, WAYS, Wired, prompt

pytestmark = pytest.mark.e2e
every_way = pytest.mark.parametrize("way", WAYS)
SERVED = b'{"served": true}'

INTERNAL = [
    "x-pd-answer", "x-pd-prefill", "x-pd-decode", "x-pd-error", "x-pd-anything",
    "x-gateway-destination-endpoint", "x-gateway-destination-endpoint-subset",
    "x-data-parallel-rank", "x-prefiller-host-port",
    "x-envoy-retry-on", "x-envoy-max-retries", "x-envoy-retry-grpc-on",
    "x-envoy-upstream-rq-timeout-ms", "x-envoy-upstream-rq-per-try-timeout-ms",
    "x-envoy-expected-rq-timeout-ms", "x-envoy-hedge-on-per-try-timeout",
    "x-envoy-upstream-alt-stat-name", "x-envoy-upstream-rq-timeout-alt-response",
    "x-envoy-original-path", "x-envoy-original-url", "x-envoy-original-method",
    "x-envoy-decorator-operation", "x-envoy-external-address", "x-envoy-internal",
    "x-envoy-force-trace", "x-envoy-ip-tags", "x-envoy-downstream-service-node",
    "x-envoy-downstream-service-cluster", "x-envoy-attempt-count",
    "x-envoy-retriable-header-names", "x-envoy-retriable-status-codes",
]  # fmt: skip
"""Set by the sidecar or by Envoy, or obeyed by one of them."""


@every_way
@pytest.mark.parametrize("spell", [str.lower, str.title, str.upper])
def test_internal_headers_of_a_client_reach_nobody(wired: Wired, way: str, spell: type) -> None:
    """In any spelling, all at once: the request goes where it would have gone."""
    elsewhere = wired.decode if way != "pd" else wired.prefill
    forged = [f"{spell(name)}: {elsewhere.address}" for name in INTERNAL]
    got = wired.post(way, *forged)
    assert (got.status, got.body) == (200, SERVED)
    _assert_went_the_usual_way(wired, way)
    for one in wired.got:
        values = {name: value for name, value in one.head.fields if name in INTERNAL}
        values.pop("x-envoy-external-address", None)  # Envoy's own, of the client
        own = values.pop("x-gateway-destination-endpoint", None)
        assert own in (None, one.head.get("host"))
        assert values == {}


def _assert_went_the_usual_way(wired: Wired, way: str) -> None:
    expected = {"pd": [1, 1], "aggregated": [1, 0], "single": [1, 0]}[way]
    assert [len(engine.got) for engine in wired.engines] == expected


@every_way
@pytest.mark.parametrize("name", ["x-envoy-upstream-rq-timeout-ms", "x-envoy-max-retries"])
def test_a_client_sets_no_time_limit_and_no_retry(wired: Wired, way: str, name: str) -> None:
    """A limit of 1 ms, or three retries of a 503: the first answer counts, whenever it comes."""
    wired.script(way, answer(b"busy", "503 Busy"))
    got = wired.post(way, f"{name}: {1 if 'ms' in name else 3}", "x-envoy-retry-on: 5xx")
    assert (got.status, got.body) == (503, b"busy")
    assert len(wired.serving(way).got) == 1


@every_way
@pytest.mark.parametrize(
    "forged",
    ["___prefill_addr_10.6.6.6:1___decode_addr_10.6.6.6:2_abc", "x" * 129, "a b", "\xff", ""],
)
def test_engines_get_an_id_of_ours_and_the_client_its_own(
    wired: Wired, way: str, forged: str
) -> None:
    """Older engines dial the addresses in an id. What is no visible ASCII, or too long, is not
    echoed either."""
    got = wired.post(way, f"X-Request-Id: {forged}")
    assert got.status == 200
    for one in wired.got:
        (own,) = one.head.values("x-request-id")
        assert own != forged
        assert "10.6.6.6" not in repr(one)
    is_fit = forged.isascii() and " " not in forged and 0 < len(forged) <= 128
    assert (got.get("x-request-id") == forged) is is_fit


@every_way
def test_two_request_ids_are_never_joined_for_an_engine(wired: Wired, way: str) -> None:
    """Each engine gets one, of ours."""
    wired.post(way, "X-Request-Id: one", "X-Request-Id: two")
    ids = [one.head.values("x-request-id") for one in wired.got]
    assert ids
    assert all(len(one) == 1 and one[0] not in ("one", "two", "one,two") for one in ids)


@every_way
@pytest.mark.parametrize(
    "host",
    ["Host: evil.example", "Host: 10.6.6.6:1", "Host: a@evil.example", "Host: [::1]:22",
     "Host: ", "Host: e\nX-Forwarded-Host: evil.example"],
)  # fmt: skip
def test_the_host_that_a_client_names_is_not_the_engines(wired: Wired, way: str, host: str) -> None:
    """Each engine is called by its own address."""
    first, _, more = host.partition("\n")
    extra = [more] if more else []
    got = wired.ask(request(f"POST {PATH[way]}", JSON, *extra, body=prompt(way), host=first))
    assert (got.status, got.body) == (200, SERVED)
    _assert_went_the_usual_way(wired, way)
    for engine in wired.engines:
        assert {one.head.get("host") for one in engine.got} <= {engine.address}


@every_way
def test_an_absolute_request_line_is_served_by_its_path(wired: Wired, way: str) -> None:
    """As a proxy is asked; its host is nobody that is dialled."""
    line = f"POST http://evil.example:81{PATH[way]}"
    got = wired.ask(request(line, JSON, body=prompt(way)))
    assert (got.status, got.body) == (200, SERVED)
    _assert_went_the_usual_way(wired, way)
    for engine in wired.engines:
        for one in engine.got:
            assert one.path == PATH[way]
            assert one.head.get("host") == engine.address


@every_way
def test_http_2_pseudo_headers_choose_no_host_either(wired: Wired, way: str) -> None:
    """`:authority`, beside a Host of its own."""
    with H2Client(wired.url) as client:
        sent = client.post(PATH[way], prompt(way), ("host", "evil.example"), host="evil.example:9")
        got = client.answer(sent)
    assert got.status == 200
    for engine in wired.engines:
        assert {one.head.get("host") for one in engine.got} <= {engine.address}
    _assert_went_the_usual_way(wired, way)


@every_way
def test_hop_by_hop_headers_end_at_the_edge(wired: Wired, way: str) -> None:
    """Also those that `Connection` names: an engine must not be told to drop what we set."""
    got = wired.post(
        way,
        "Connection: close, x-request-id, x-hop, x-gateway-destination-endpoint",
        "x-hop: 1",
        "Keep-Alive: timeout=1",
        "Proxy-Connection: keep-alive",
        "TE: trailers, gzip",
    )
    assert (got.status, got.body) == (200, SERVED)
    _assert_went_the_usual_way(wired, way)
    for one in wired.got:
        assert not one.head.values("keep-alive")
        assert not one.head.values("proxy-connection")
        assert one.head.values("te") in ([], ["trailers"])
        assert not one.head.values("x-hop")
        assert not one.head.values("connection")
        assert one.head.get("x-request-id")
        assert one.head.get("content-type") == "application/json"


HEADER_FLOODS = {
    "101 headers": [f"x-{i}: 1" for i in range(101)],
    "2,000 headers": [f"x-{i}: 1" for i in range(2000)],
    "one header of 61 KiB": ["x-a: " + "y" * 62_500],
    "seventy headers of 1 KiB": [f"x-{i}: " + "y" * 1024 for i in range(70)],
    "a cookie of 61 KiB in pieces": ["cookie: " + "y" * 6200 for _ in range(11)],
}


@every_way
def test_a_connection_header_that_names_the_host_is_refused(wired: Wired, way: str) -> None:
    """An engine would be called without one."""
    assert wired.post(way, "Connection: host").refusal == (400, "bad_request")
    assert wired.got == []


@every_way
@pytest.mark.parametrize("name", HEADER_FLOODS)
def test_a_flood_of_headers_is_431(wired: Wired, way: str, name: str) -> None:
    """More than 100, or more than 60 KiB of them."""
    got = wired.post(way, *HEADER_FLOODS[name])
    assert got.refusal == (431, "headers_too_large")
    assert wired.got == []
    wired.assert_serves()


@pytest.mark.parametrize("name", HEADER_FLOODS)
def test_a_flood_of_headers_ends_an_http_2_stream(wired: Wired, name: str) -> None:
    """With a reset, never with an answer."""
    fields = [tuple(line.split(": ")) for line in HEADER_FLOODS[name]]
    with H2Client(wired.url) as client:
        sent = client.open("POST", "/v1/completions", *fields)
        client.send(sent, prompt())
        got = client.answer(sent)
    assert (got.is_reset, got.status) == (True, 0)
    assert wired.got == []
    wired.assert_serves()


def test_a_request_just_below_the_limits_is_served(wired: Wired) -> None:
    """Many headers, and large ones; both engines get them."""
    assert wired.post("pd", *(f"x-{i}: 1" for i in range(80))).status == 200
    assert wired.post("pd", "x-a: " + "y" * 50_000).status == 200
    for engine in wired.engines:
        many, large = engine.got
        assert all(many.head.get(f"x-{i}") == "1" for i in range(80))
        assert len(large.head.get("x-a") or "") == 50_000


ODD_LINES = {
    "POST /v1/completions#x": (400, "bad_request"),
    "POST /v1/completions?" + "a" * 62_000: (431, "headers_too_large"),
    "POST /v1/completions\\x": (404, "not_found"),
    "POST v1/completions": (400, "bad_request"),
    "POST *": (400, "bad_request"),
    "POST /v1/%00": (400, "bad_request"),
    "POST /v1/completions%0d%0aX:1": (404, "not_found"),
    "post /v1/completions": (400, "bad_request"),
    "P\xd6ST /v1/completions": (400, "bad_request"),
}


@pytest.mark.parametrize("line", ODD_LINES, ids=lambda line: line[:40])
def test_odd_request_lines_lead_to_no_engine(wired: Wired, line: str) -> None:
    """A path that is not what it looks like is none of ours."""
    got = wired.ask(request(line, JSON, body=prompt()))
    assert got.refusal == ODD_LINES[line]
    assert wired.got == []
    wired.assert_serves()
