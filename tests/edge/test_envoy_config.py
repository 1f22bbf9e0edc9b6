"""The rendered configuration in a real Envoy: who is reached, and who is told what."""

import asyncio
import concurrent.futures
import http.client
import json
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest
from edge_client import Answer, ask, raw
from envoy_edge import Edge, Engine, eventually, template

from sidecar.edge.envoy_process import find_envoy
from sidecar.xds.bootstrap import bootstrap_document
from sidecar.xds.settings import EdgeSettings
from sidecar.xds.snapshot import ENDPOINTS, SEND_ORDER
from tests.ports import free_port

pytestmark = pytest.mark.e2e

HEADERS_LIMIT_S = 1.0
WHOLE_LIMIT_S = 2.5
BODY_LIMIT = 1 << 20


@pytest.fixture(scope="module")
def edge_settings() -> dict[str, Any]:
    return {
        "decode_headers_timeout_s": HEADERS_LIMIT_S,
        "decode_idle_timeout_s": HEADERS_LIMIT_S,
        "decode_whole_timeout_s": WHOLE_LIMIT_S,
        "upload_timeout_s": 1,
        "max_body_bytes": BODY_LIMIT,
        "access_log_report_interval_s": 0.5,
    }


@pytest.fixture
def edge(edge: Edge) -> Iterator[Edge]:
    """With the pool as it began, afterwards too."""
    yield edge
    edge.publish([edge.engine.address])
    eventually(lambda: edge.serves([edge.engine.address]), "the pool is back")


def complete(edge: Edge, to: str = "", **headers: str) -> Answer:
    return ask(edge, "POST", "/v1/completions", b'{"a":1}', x_test_to=to, **headers)


def test_envoy_acks_every_type_and_warns_of_nothing(edge: Edge) -> None:
    (state,) = edge.run(_envoys(edge))
    assert state.acked.keys() == set(SEND_ORDER)
    assert state.is_gating
    assert "[warning]" not in edge.log()


async def _envoys(edge: Edge) -> tuple[object, ...]:
    return edge.discovery.envoys()


def test_validation_of_the_bootstrap_prints_no_warning(tmp_path) -> None:
    settings = EdgeSettings(
        node_id="n", control_socket="/tmp/c.sock", worker_sockets=(), admin_port=free_port()
    )
    file = tmp_path / "bootstrap.json"
    file.write_text(json.dumps(bootstrap_document(template("bootstrap.yaml"), settings)))
    command = [find_envoy(None), "--mode", "validate", "-c", file]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    assert "OK" in done.stdout
    assert "warning" not in done.stderr.lower()
    assert "deprecated" not in done.stderr.lower()


def test_the_chosen_engine_is_reached_with_the_body(edge: Edge) -> None:
    answer = complete(edge, edge.engine.address)
    assert (answer.status, json.loads(answer.body)) == (200, {"bytes": 7})
    path, headers, body = edge.engine.requests[0]
    assert (path, body) == ("/v1/completions", b'{"a":1}')
    assert headers["x-request-id"] == "e1"


def test_the_client_id_and_the_receipt_come_from_metadata(edge: Edge) -> None:
    headers = complete(edge, edge.engine.address, x_request_id="mine", x_test_receipt="1").headers
    assert headers["x-request-id"] == "mine"
    assert headers["x-pd-prefill"] == "p0#1"
    assert headers["x-pd-decode"] == "d0#0"


def test_missing_metadata_leaves_the_headers_out(edge: Edge) -> None:
    headers = complete(edge, edge.engine.address).headers
    assert not headers.keys() & {"x-request-id", "x-pd-prefill", "x-pd-decode"}


@pytest.mark.parametrize("to", ["", "127.0.0.1:9", "[::1]:9", "no-address"])
def test_a_host_nobody_chose_is_503_and_no_engine_is_reached(edge: Edge, to: str) -> None:
    answer = complete(edge, to)
    assert (answer.status, answer.reason) == (503, "instance_gone")
    assert answer.headers["retry-after"] == "1"
    assert edge.engine.requests == []


def test_what_only_the_sidecar_may_set_is_stripped_before_the_route(edge: Edge) -> None:
    answer = complete(
        edge,
        x_pd_answer="stream",
        X_Pd_Anything="1",
        x_gateway_destination_endpoint=edge.engine.address,
        x_data_parallel_rank="3",
        x_prefiller_host_port="a:1",
        x_envoy_retry_on="5xx",
        x_envoy_upstream_rq_per_try_timeout_ms="1",
        x_test_ex="stripped",
    )
    assert (answer.status, answer.reason) == (503, "instance_gone")
    assert edge.engine.requests == []
    (seen,) = edge.seen
    assert not [k for k in seen if k.startswith(("x-pd", "x-gateway", "x-data", "x-prefiller"))]
    assert not seen.keys() & {"x-envoy-retry-on", "x-envoy-upstream-rq-per-try-timeout-ms"}
    assert edge.end_of("stripped").route_name == "whole/completions"


def test_the_sidecars_own_answer_passes_byte_for_byte(edge: Edge) -> None:
    answer = complete(edge, x_test_immediate="1", x_test_ex="own")
    assert answer.status == 503
    assert answer.body == b'{"mine": true, "z": 1, "a": 2}'
    assert answer.headers["x-pd-error"] == "draining"
    assert edge.end_of("own").custom_tags["reply"] == "draining"


def test_an_engines_own_refusal_passes_byte_for_byte(edge: Edge) -> None:
    answer = complete(edge, edge.engine.address, x_test_engine="teapot")
    assert (answer.status, answer.body) == (413, b"engine's own")
    assert "x-pd-error" not in answer.headers


def test_connect_and_upgrades_are_refused_without_the_sidecar(edge: Edge) -> None:
    head, body = raw(edge, b"CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 404")
    assert json.loads(body)["error"]["code"] == "not_found"
    answer = ask(edge, "GET", "/v1/models", upgrade="websocket", connection="upgrade")
    assert (answer.status, answer.reason) == (403, "upgrade_refused")
    assert edge.seen == []


@pytest.mark.parametrize(
    ("data", "status", "reason"),
    [
        (b"\x00\x01garbage\r\n\r\n", b"400", "bad_request"),
        (b"GET /a%2fb HTTP/1.1\r\nHost: a\r\n\r\n", b"400", "bad_request"),
        (
            b"GET / HTTP/1.1\r\nHost: a\r\nx: " + b"y" * 70000 + b"\r\n\r\n",
            b"431",
            "headers_too_large",
        ),
        (
            b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nhalf",
            b"408",
            "upload_timeout",
        ),
    ],
)
def test_broken_requests_are_told_so_in_one_shape(
    edge: Edge, data: bytes, status: bytes, reason: str
) -> None:
    head, body = raw(edge, data)
    assert head.split()[1] == status
    assert b"x-pd-error: " + reason.encode() in head
    assert json.loads(body)["error"]["code"] == reason


def test_a_body_over_the_limit_is_413_and_one_at_the_limit_passes(edge: Edge) -> None:
    path, to = "/v1/completions", edge.engine.address
    at_limit = ask(edge, "POST", path, b"x" * BODY_LIMIT, x_test_to=to)
    assert json.loads(at_limit.body) == {"bytes": BODY_LIMIT}
    edge.engine.requests.clear()
    over = ask(edge, "POST", path, b"x" * (BODY_LIMIT + 65537), x_test_to=to)
    assert (over.status, over.reason) == (413, "body_too_large")
    assert edge.engine.requests == []


def test_streamed_without_headers_in_time_is_504(edge: Edge) -> None:
    began = time.monotonic()
    answer = complete(
        edge, edge.engine.address, x_test_stream="1", x_test_engine="hang", x_test_ex="slow"
    )
    assert (answer.status, answer.reason) == (504, "decode_timeout")
    assert HEADERS_LIMIT_S * 0.9 < time.monotonic() - began < WHOLE_LIMIT_S
    assert edge.end_of("slow").route_name == "streamed/completions"


@pytest.mark.parametrize(
    "how", [{"x_test_stream": "1"}, {}, {"x_test_stream": "1", "x_test_watch": "1"}]
)
def test_an_answer_that_stalls_is_cut_never_ended_cleanly(edge: Edge, how: dict[str, str]) -> None:
    with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
        complete(edge, edge.engine.address, x_test_engine="stall", x_test_ex=f"stall{how}", **how)
    flags = edge.end_of(f"stall{how}").response_flags
    assert flags.stream_idle_timeout if how else flags.upstream_request_timeout


def test_an_answer_held_for_longer_than_the_idle_limit_is_504(edge: Edge) -> None:
    answer = complete(
        edge, edge.engine.address, x_test_stream="1", x_test_watch="1", x_test_hold_answer_s="3"
    )
    assert (answer.status, answer.reason) == (504, "decode_timeout")


def test_a_whole_answer_has_the_long_limit(edge: Edge) -> None:
    began = time.monotonic()
    answer = complete(edge, edge.engine.address, x_test_engine="hang")
    assert (answer.status, answer.reason) == (504, "decode_timeout")
    assert time.monotonic() - began > WHOLE_LIMIT_S * 0.9


def test_no_limit_runs_while_the_sidecar_waits_for_prefill(edge: Edge) -> None:
    async def release_later() -> None:
        edge.release.clear()
        asyncio.get_running_loop().call_later(WHOLE_LIMIT_S + 0.5, edge.release.set)

    edge.run(release_later())
    answer = complete(edge, edge.engine.address, x_test_hold="1", x_test_stream="1")
    assert answer.status == 200


def test_response_headers_can_be_asked_for(edge: Edge) -> None:
    assert complete(edge, edge.engine.address, x_test_watch="1").status == 200


def test_a_refused_engine_is_503_and_the_second_host_serves_when_asked(edge: Edge) -> None:
    dead = f"127.0.0.1:{free_port()}"
    edge.publish([edge.engine.address, dead])
    eventually(lambda: edge.serves([edge.engine.address, dead]), "both ACKed")
    answer = complete(edge, dead)
    assert (answer.status, answer.reason) == (503, "decode_refused")
    assert edge.engine.requests == []
    both = f"{dead},{edge.engine.address}"
    assert complete(edge, both, x_test_retry="1", x_test_ex="retried").status == 200
    served = edge.end_of("retried").upstream_remote_address.socket_address
    assert f"{served.address}:{served.port_value}" == edge.engine.address
    exhausted = complete(edge, dead, x_test_retry="1")
    assert (exhausted.status, len(edge.engine.requests)) == (503, 1)


def test_an_endpoint_update_is_acked_and_reaches_the_new_engine(edge: Edge) -> None:
    other = Engine()
    edge.run(other.start())
    try:
        edge.publish([other.address])
        eventually(lambda: edge.serves([other.address]), "the update ACKed")
        assert complete(edge, other.address).status == 200
        assert complete(edge, edge.engine.address).status == 503
        assert (len(other.requests), len(edge.engine.requests)) == (1, 0)
    finally:
        edge.run(other.stop())


def test_an_empty_pool_and_ipv6_are_acked(edge: Edge) -> None:
    for endpoints in ([], ["[::1]:9", edge.engine.address]):
        edge.publish(endpoints)
        eventually(lambda wanted=endpoints: edge.serves(wanted), "the update ACKed")
    assert complete(edge, edge.engine.address).status == 200
    assert complete(edge, "[::1]:9").reason == "decode_refused"


def test_a_refused_endpoint_list_keeps_the_old_one_serving_and_stops_gating(edge: Edge) -> None:
    edge.publish([edge.engine.address, "a-name-not-an-address:80"])
    eventually(lambda: edge.discovery.nacks_total["ClusterLoadAssignment"] == 1, "the NACK")
    (state,) = edge.run(_envoys(edge))
    assert not state.is_gating
    assert "malformed IP address" in state.rejections[ENDPOINTS]
    assert complete(edge, edge.engine.address).status == 200


def test_a_refused_listener_keeps_the_old_one_serving(edge: Edge) -> None:
    edge.publish([edge.engine.address], listen_host="not-an-address")
    eventually(lambda: edge.discovery.nacks_total["Listener"] == 1, "the NACK")
    assert complete(edge, edge.engine.address).status == 200


def test_a_cluster_update_warms_although_the_endpoints_are_the_same(edge: Edge) -> None:
    edge.publish([edge.engine.address], upstream_connect_timeout_s=3)
    eventually(lambda: '"connect_timeout": "3s"' in edge.admin("/config_dump"), "the new cluster")
    eventually(lambda: edge.stat("cluster_manager.warming_clusters") == 0, "nothing warms")
    assert complete(edge, edge.engine.address).status == 200


def test_without_a_worker_requests_end_with_503_and_recover(edge: Edge) -> None:
    edge.run(edge.stop_worker())
    try:
        answer = complete(edge, edge.engine.address)
        assert (answer.status, answer.reason) == (503, "no_worker")
        assert ask(edge, "GET", "/nope").status == 404
    finally:
        edge.run(edge.start_worker())
        edge.wait_for_worker()
    assert complete(edge, edge.engine.address).status == 200


def test_a_restarted_control_process_changes_nothing_for_envoy(edge: Edge) -> None:
    names = ("listener_manager.listener_modified", "cluster_manager.cluster_modified")
    before = [edge.stat(name) for name in names]

    async def restart() -> None:
        await edge.control.stop(None)
        await edge.start_control()

    edge.run(restart())
    eventually(lambda: edge.serves([edge.engine.address]), "the ADS stream is back", 5)
    assert complete(edge, edge.engine.address).status == 200
    assert [edge.stat(name) for name in names] == before


def test_the_access_log_reports_ends_and_open_exchanges(edge: Edge) -> None:
    complete(edge, edge.engine.address, x_test_engine="hang", x_test_ex="long")
    end = edge.end_of("long")
    assert end.custom_tags["rec"] == "[1]"
    ours = [e for e in edge.entries if e.common_properties.custom_tags.get("ex") == "long"]
    assert len(ours) >= 3  # every report_interval one, and the end
    assert end.response_flags.upstream_request_timeout
    assert int(end.custom_tags["total_us"]) > WHOLE_LIMIT_S * 0.9e6
    assert end.upstream_remote_address.socket_address.port_value


def test_the_file_log_has_one_json_line_for_each_ended_request(edge: Edge) -> None:
    path = edge.run_dir / "access.log"
    complete(edge, edge.engine.address)
    eventually(lambda: path.exists() and "via_upstream" in path.read_text(), "a line", 15)
    line = next(json.loads(x) for x in path.read_text().splitlines() if "via_upstream" in x)
    assert line.keys() == {
        "start_time", "method", "path", "protocol", "status", "flags", "details",
        "bytes_received", "bytes_sent", "duration_ms", "upstream", "ex",
        "request_id", "prefill", "decode",
    }  # fmt: skip


def test_more_held_exchanges_than_envoys_default_limits_allow(edge: Edge) -> None:
    count = 1500
    request = (
        b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nConnection: close\r\nx-test-hold: 1\r\n"
        b"x-test-to: " + edge.engine.address.encode() + b"\r\nContent-Length: 2\r\n\r\n{}"
    )

    async def one() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", edge.settings.listen_port)
        writer.write(request)
        answer = await reader.read()
        writer.close()
        return answer

    async def burst() -> list[bytes]:
        return await asyncio.gather(*(one() for _ in range(count)))

    async def hold() -> None:
        edge.release.clear()

    async def let_go() -> None:
        edge.release.set()

    edge.run(hold())
    with concurrent.futures.ThreadPoolExecutor(1) as clients:
        answers = clients.submit(asyncio.run, asyncio.wait_for(burst(), 60))
        eventually(lambda: len(edge.seen) == count, "all are held at once", 30)
        edge.run(let_go())
        refused = [a for a in answers.result() if not a.startswith(b"HTTP/1.1 200")]
        assert refused == []
