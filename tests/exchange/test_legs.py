"""The legs as HTTP: URLs, headers, ranks and keys."""

import json

import pytest

from sidecar.exchange.situation import Limits
from sidecar.routing.instance import Version
from sidecar.routing.slots import Placement
from sidecar.wire.ext_proc import RequestBody
from sidecar.wire.paths import SUFFIX
from tests.exchange.exchange_driver import (
    BODY,
    ID,
    KV,
    PREFILL_OK,
    READ,
    WRITE,
    Driver,
    decode,
    headers,
    prefill,
    read_pair,
)

FORGED = {
    "x-gateway-destination-endpoint": "10.6.6.6:1",
    "x-data-parallel-rank": "7",
    "x-prefiller-host-port": "10.6.6.6:1",
    "x-pd-answer": "stream",
    "x-pd-anything": "1",
    "x-envoy-retry-on": "5xx",
    "x-request-id": "mine",
    "content-length": "9999",
    "transfer-encoding": "chunked",
    "connection": "close",
    "proxy-authorization": "Basic x",
    "host": "evil",
    ":authority": "evil",
    "x-latin": "caf\xe9",
}
KEPT = {"authorization": "Bearer client", "traceparent": "00-1-2-01", "x-session-id": "s"}


def dispatched(placement: Placement, *, limits: Limits | None = None, **more: str) -> Driver:
    named = {k.replace("_", "-"): v for k, v in more.items()}
    request = headers("/v1/chat/completions?x=1", **(FORGED | KEPT | named))
    return Driver(placement, limits=limits).feed(request, BODY)


def test_what_a_client_forged_never_reaches_prefill() -> None:
    """Its own headers do; the engines' id and rank are ours; no type is made up for it."""
    (leg,) = dispatched(read_pair()).legs
    assert leg.headers == KEPT | {
        "x-request-id": ID,
        "x-data-parallel-rank": "1",
    }
    assert leg.url == "http://10.0.0.0:8000/v1/chat/completions"


@pytest.mark.parametrize("suffix", SUFFIX.values())
def test_both_legs_use_the_api_the_client_used(suffix: str) -> None:
    """The same suffix on the instance's base, and as the path that Envoy sends."""
    driver = Driver(read_pair()).feed(headers("/v1" + suffix), RequestBody(b"{}"), PREFILL_OK)
    assert driver.legs[0].url == "http://10.0.0.0:8000/v1" + suffix
    assert driver.body_reply.set_headers[":path"] == "/v1" + suffix


def test_an_instance_with_one_rank_gets_no_rank() -> None:
    """dp_size 1 refuses a rank other than 0, so none is forwarded (design §5)."""
    one = Placement(prefill(rank=0, dp_size=1), decode(rank=0, dp_size=1), READ)
    driver = dispatched(one).feed(PREFILL_OK)
    assert "x-data-parallel-rank" not in driver.legs[0].headers
    assert "x-data-parallel-rank" not in driver.body_reply.set_headers


def test_the_engines_key_takes_the_clients_place_on_both_legs() -> None:
    """With `engine.api_key_file` no client's Authorization reaches an engine."""
    driver = dispatched(read_pair(), limits=Limits(engine_api_key="k")).feed(PREFILL_OK)
    assert driver.legs[0].headers["authorization"] == "Bearer k"
    assert driver.body_reply.set_headers["authorization"] == "Bearer k"
    plain = dispatched(read_pair()).feed(PREFILL_OK)
    assert plain.legs[0].headers["authorization"] == "Bearer client"
    assert "authorization" not in plain.body_reply.set_headers


@pytest.mark.parametrize("mode", [READ, WRITE])
def test_both_legs_carry_the_same_embedded_id_where_engines_need_it(mode: object) -> None:
    """The connector reads the peer's address out of it."""
    old = Version(0, 25)
    pair = Placement(prefill(version=old), decode(version=old), mode)
    driver = dispatched(pair)
    if mode is READ:
        driver.feed(PREFILL_OK)
    sent = driver.legs[0].headers["x-request-id"]
    assert sent.startswith("___prefill_addr_host:10.0.0.0,handshake:6301,")
    assert sent.endswith(f"_{ID}")
    assert driver.body_reply.set_headers["x-request-id"] == sent


def test_decode_goes_to_its_instance_by_envoys_override() -> None:
    """Destination, authority and path are the instance's; a stream takes the stream's route."""
    reply = dispatched(read_pair()).feed(PREFILL_OK).body_reply
    assert reply.set_headers == {
        "x-gateway-destination-endpoint": "10.0.1.5:8000",
        ":path": "/v1/chat/completions",
        ":authority": "10.0.1.5:8000",
        "x-request-id": ID,
        "x-data-parallel-rank": "0",
        "x-pd-answer": "stream",
    }
    assert reply.clears_route


def test_a_whole_answer_keeps_its_route() -> None:
    """Without `stream` neither the header nor the route changes."""
    driver = Driver(read_pair()).feed(headers(), RequestBody(b'{"stream":false}'), PREFILL_OK)
    assert "x-pd-answer" not in driver.body_reply.set_headers
    assert not driver.body_reply.clears_route


def test_a_clients_own_transfer_parameters_reach_neither_leg() -> None:
    """They are replaced on both, and a `request_id` is dropped."""
    body = (
        b'{"prompt":"x","kv_transfer_params":{"remote_host":"evil"},'
        b'"ec_transfer_params":{"remote_host":"evil"},"request_id":"evil"}'
    )
    driver = Driver(read_pair()).feed(headers(), RequestBody(body), PREFILL_OK)
    assert b"evil" not in driver.legs[0].body
    assert b"evil" not in driver.body_reply.body


def test_the_prefill_leg_has_no_body_limit_in_read() -> None:
    """There the answer carries the block ids and must be whole."""
    assert dispatched(read_pair()).legs[0].body_timeout_s is None


def test_what_prefill_handed_over_reaches_decode_to_the_byte() -> None:
    """Its parameters are copied, not re-encoded."""
    body = dispatched(read_pair()).feed(PREFILL_OK).body_reply.body
    given = json.loads(KV)["kv_transfer_params"]
    assert json.loads(body)["kv_transfer_params"].items() >= given.items()
