"""What reaches the engines, byte for byte, as the engines themselves recorded it."""

import json
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.stack import Engine, Stack

pytestmark = pytest.mark.e2e

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TEXT = rb'"caf\u00e9 \ud83d\ude00  \"quoted\"\t\/ end"'
SHAPE = {
    "completions": b'"prompt" : ' + TEXT,
    "chat/completions": b'"messages" : [{"role" : "user",  "content":' + TEXT + b"} ]",
}
FORGED = (
    b'{"model":"sim-model","prompt":"x","max_tokens":2,"kv_transfer_params":{"remote_host":"evil"},'
    b'"ec_transfer_params":{"a":1},"request_id":"mine"}'
)


def post(url: str, body: bytes, **headers: str) -> dict[str, Any]:
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(url, body, {"content-type": "application/json", **headers})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.loads(answer.read())


def arrived(engine: Engine, leg: str) -> tuple[str, dict[str, str], bytes]:
    """Path, headers (lower case) and body of the last request of that leg."""
    one = engine.last(leg)[-1]
    headers = {name.lower(): value for name, value in one["headers"]}
    return one["path"], headers, one["body"].encode()


@pytest.mark.parametrize("server", ["http2", "grpcio"])
@pytest.mark.parametrize("mode", ["READ", "WRITE"])
@pytest.mark.parametrize("api", ["completions", "chat/completions"])
def test_both_legs_carry_the_clients_request(
    stack_of: Callable[..., Stack], mode: str, api: str, server: str
) -> None:
    """The same path and prompt bytes on both, the client's authorization and trace, its limits;
    whatever carries ext_proc."""
    stack = stack_of({"ext_proc": {"server": server}})
    (prefill,), (decode,) = stack.fleet([2], [2], mode)
    shape = SHAPE[api]
    body = b'{"model":"sim-model", ' + shape + b', "max_tokens":3,"seed":12345678901234567890,'
    body += b'"x":1.50}'
    post(f"{stack.url}/v1/{api}", body, authorization="Bearer secret", traceparent=TRACE)
    legs = [arrived(prefill, "prefill"), arrived(decode, "decode")]
    for path, headers, sent in legs:
        assert path == f"/v1/{api}"
        assert headers["authorization"] == "Bearer secret"
        assert headers["traceparent"] == TRACE
        assert headers["x-data-parallel-rank"] in ("0", "1")
        assert shape.split(b" : ", 1)[1] in sent
        assert b"12345678901234567890" in sent
        assert b"1.50" in sent
    (_, to_prefill, prefill_body), (_, to_decode, decode_body) = legs
    assert to_prefill["x-request-id"] == to_decode["x-request-id"]
    first, second = json.loads(prefill_body), json.loads(decode_body)
    assert (first["max_tokens"], first["min_tokens"], first["stream"]) == (1, 1, False)
    assert second["max_tokens"] == 3
    assert first["kv_transfer_params"]["transfer_id"] == second["kv_transfer_params"]["transfer_id"]
    assert second["kv_transfer_params"]["remote_dp_rank"] == int(to_prefill["x-data-parallel-rank"])


@pytest.mark.parametrize("mode", ["READ", "WRITE"])
def test_what_only_a_router_may_say_is_not_taken_from_clients(
    stack_of: Callable[..., Stack], mode: str
) -> None:
    """Forged KV parameters, destinations, ranks and ids reach no engine; the answer is right."""
    stack = stack_of()
    (prefill,), (decode,) = stack.fleet([1], [1], mode)
    answer = post(
        f"{stack.url}/v1/completions",
        FORGED,
        x_gateway_destination_endpoint=prefill.address,
        x_data_parallel_rank="7",
        x_prefiller_host_port="evil:1",
        x_pd_answer="stream",
        x_request_id="___prefill_addr_host:evil,handshake:1,notify:2___decode_addr_x",
    )
    assert answer["choices"][0]["text"]
    for engine, leg in ((prefill, "prefill"), (decode, "decode")):
        _, headers, sent = arrived(engine, leg)
        assert b"evil" not in sent
        assert b"ec_transfer_params" not in sent
        assert "mine" not in json.loads(sent).values()
        assert "evil" not in str(headers)
        assert "x-data-parallel-rank" not in headers
        assert not engine.state()["errors"]
