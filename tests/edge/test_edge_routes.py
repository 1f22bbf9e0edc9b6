"""Which paths exist at the edge, by which method, and that no other path leads anywhere."""

import pytest
from edge_client import ask, raw_until_closed
from envoy_edge import Edge

from sidecar.wire.paths import API_PATHS, MODEL_PATHS, Single, api_of, own_of, single_of

pytestmark = pytest.mark.e2e


CLOSE = b"Connection: close\r\n\r\n"
GENERATE = ["/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"]
SINGLE_POST = [
    "/tokenize", "/detokenize", "/v1/messages/count_tokens", "/v1/embeddings", "/pooling",
    "/classify", "/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank", "/v2/embed",
    "/generative_scoring", "/v1/decisions", "/v1/systemone", "/v1/audio/transcriptions",
    "/v1/audio/translations", "/v1/chat/completions/batch", "/v1/chat/completions/render",
    "/v1/completions/render", "/v1/messages/render", "/v1/responses/render",
    "/v1/chat/completions/derender", "/v1/completions/derender",
]  # fmt: skip
NO_MODEL = {
    "/tokenize", "/detokenize", "/v1/messages/count_tokens", "/v1/chat/completions/render",
    "/v1/completions/render", "/v1/messages/render", "/v1/responses/render",
    "/v1/chat/completions/derender", "/v1/completions/derender",
}  # fmt: skip
WITH_HEAD = ["/health", "/v1/models"]
KEPT = ["/v1/responses/resp_1", "/v1/responses/a.b-c%20d"]

NOT_SERVED = [
    # development: cache, sleep, remote calls
    "/server_info", "/reset_prefix_cache", "/reset_mm_cache", "/reset_encoder_cache",
    "/collective_rpc", "/sleep", "/wake_up", "/is_sleeping", "/release_kv_cache_memory",
    # reinforcement learning
    "/pause", "/resume", "/is_paused", "/abort_requests", "/get_world_size",
    "/init_weight_transfer_engine", "/shutdown_weight_transfer_engine", "/start_weight_update",
    "/start_draft_weight_update", "/update_weights", "/finish_weight_update",
    "/update_weight_version", "/weight_info", "/weight_checker",
    # operators' own: faults, scaling, adapters, profiling, numbers
    "/fault_tolerance/apply", "/fault_tolerance/status", "/scale_elastic_ep",
    "/is_scaling_elastic_ep", "/v1/load_lora_adapter", "/v1/unload_lora_adapter",
    "/start_profile", "/stop_profile", "/metrics", "/load", "/kv_event_sources", "/ready",
    "/readyz",
    # other doors to the model, past the KV parameters that are taken out
    "/invocations", "/cohere/v2/chat", "/inference/v1/generate", "/inference/v1/abort_requests",
    "/v1/realtime",
    # documentation
    "/docs", "/docs/oauth2-redirect", "/redoc", "/openapi.json", "/static/swagger-ui.css",
]  # fmt: skip
"""Every other route of vLLM 0.33."""


@pytest.mark.parametrize("path", NOT_SERVED)
def test_vllms_other_routes_do_not_exist_and_reach_nobody(edge: Edge, path: str) -> None:
    """404 by Envoy itself, whatever the method: neither the sidecar nor an engine hears of it."""
    for method in ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS"):
        answer = ask(edge, method, path, b"{}" if method == "POST" else b"")
        assert (answer.status, answer.headers.get("allow")) == (404, None), method
        if method != "HEAD":
            assert answer.reason == "not_found"
    assert edge.seen == []
    assert edge.engine.requests == []


@pytest.mark.parametrize(
    "spelling",
    ["/v1/../sleep", "//sleep", "/./sleep", "/sleep/", "/SLEEP", "/sleep?x=/v1/completions",
     "/sleep%3F", "/v1/completions/../../sleep", "/v1/responses/../../sleep"],
)  # fmt: skip
def test_no_spelling_of_a_route_that_is_not_served_leads_there(edge: Edge, spelling: str) -> None:
    """Dots and doubled slashes are resolved before the route is chosen."""
    assert ask(edge, "POST", spelling, b"{}").status == 404
    assert edge.seen == []
    assert edge.engine.requests == []


@pytest.mark.parametrize("path", ["/v1/responses/a%2fb", "/v1%2Fcompletions", "/%5csleep"])
def test_an_escaped_slash_is_no_valid_path(edge: Edge, path: str) -> None:
    """An engine might unescape what the route was not chosen by."""
    answer = ask(edge, "POST", path, b"{}")
    assert (answer.status, answer.reason) == (400, "bad_request")
    assert edge.seen == []


def test_the_routes_and_the_sidecar_have_the_same_paths() -> None:
    """What Envoy lets through is judged as what it is: a path that runs the model and is taken for
    one that runs none may go to an engine that garbles it."""
    served = {*GENERATE, *SINGLE_POST}
    assert {path for path in served if api_of(path)} == API_PATHS
    assert {path for path in served if not api_of(path)} == MODEL_PATHS | NO_MODEL
    assert {single_of(path) for path in MODEL_PATHS} == {Single.MODEL}
    assert {single_of(path) for path in NO_MODEL} == {Single.ANY}
    assert all(own_of(path) for path in [*WITH_HEAD, "/ping", *KEPT])


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *(("POST", path) for path in [*GENERATE, *SINGLE_POST]),
        *((method, path) for path in WITH_HEAD for method in ("GET", "HEAD")),
        *((method, "/ping") for method in ("GET", "HEAD", "POST")),
        ("GET", "/tokenizer_info"),
        ("GET", "/version"),
        *((method, path) for path in KEPT for method in ("GET", "DELETE")),
        ("POST", "/v1/responses/resp_1/cancel"),
        ("POST", "/v1/responses/render/cancel"),
        ("POST", "/v1/completions?x=1"),
        ("POST", "//v1/completions"),
        ("GET", "/v1/responses/resp_1?stream=true&starting_after=3"),
    ],
)
def test_every_served_path_goes_through_the_sidecar(edge: Edge, method: str, path: str) -> None:
    """Which answers it, refuses it, or names the engine."""
    body = b"{}" if method == "POST" else b""
    answer = ask(edge, method, path, body, x_test_to=edge.engine.address)
    assert answer.status == 200
    (seen,) = edge.seen
    assert seen[":method"] == method
    assert edge.engine.methods == [method]


@pytest.mark.parametrize(
    ("path", "allow"),
    [
        *((path, "POST") for path in [*GENERATE, *SINGLE_POST, "/v1/responses/resp_1/cancel"]),
        *((path, "GET, HEAD") for path in WITH_HEAD),
        ("/ping", "GET, HEAD, POST"),
        ("/tokenizer_info", "GET"),
        ("/version", "GET"),
        *((path, "GET, DELETE") for path in KEPT),
    ],
)
def test_another_method_is_refused_and_the_right_ones_are_named(
    edge: Edge, path: str, allow: str
) -> None:
    """By Envoy itself. OPTIONS too, as long as no page of another origin may call."""
    wrong = {"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"} - set(allow.split(", "))
    for method in sorted(wrong):
        answer = ask(edge, method, path)
        assert (answer.status, answer.headers.get("allow")) == (405, allow), method
        if method != "HEAD":
            assert answer.reason == "method_not_allowed"
    assert edge.seen == []
    assert edge.engine.requests == []


@pytest.mark.parametrize(
    "path",
    ["/", "/v1", "/v1/", "/v1/completions/", "/v1/completionsX", "/xv1/completions", "/v3/rerank",
     "/v1/responses/", "/v1/responses/a/b", "/v1/responses/a/cancel/b", "/v1/messages/derender",
     "/v1/completions/batch", "/v1/chat/completions/batch/render", "/v1/tokenize"],
)  # fmt: skip
def test_what_only_looks_like_a_served_path_does_not_exist(edge: Edge, path: str) -> None:
    """A path is matched whole."""
    for method in ("GET", "POST"):
        answer = ask(edge, method, path)
        assert (answer.status, answer.reason) == (404, "not_found")
    assert edge.seen == []


def test_a_head_answer_has_no_body_and_leaves_the_connection_usable(edge: Edge) -> None:
    """Also where the sidecar's own answer to it has one (its readiness, when that is bad)."""
    line = b" /health HTTP/1.1\r\nHost: a\r\nx-test-immediate: 1\r\n"
    head, body = raw_until_closed(edge, b"HEAD" + line + CLOSE)
    assert head.startswith(b"HTTP/1.1 503")
    assert body == b""
    head, body = raw_until_closed(
        edge, b"HEAD" + line + b"\r\nGET" + line + b"Connection: close\r\n\r\n"
    )
    assert body.startswith(b"HTTP/1.1 503"), "the second answer follows at once"
    assert body.endswith(b"}")


def test_what_envoy_refuses_by_itself_needs_no_worker(edge: Edge) -> None:
    """At once, while no sidecar lives: no request of these waits for it."""
    upgrade = {"connection": "upgrade", "upgrade": "websocket"}
    edge.run(edge.stop_worker())
    try:
        assert ask(edge, "POST", "/sleep", b"{}").reason == "not_found"
        assert ask(edge, "GET", "/v1/completions").reason == "method_not_allowed"
        assert ask(edge, "OPTIONS", "/v1/models").reason == "method_not_allowed"
        assert ask(edge, "GET", "/v1/realtime", **upgrade).reason == "upgrade_refused"
        assert ask(edge, "POST", "/v1/completions", b"{}", **upgrade).reason == "upgrade_refused"
        head, _ = raw_until_closed(edge, b"CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\n" + CLOSE)
        assert head.startswith(b"HTTP/1.1 404")
        assert ask(edge, "POST", "/v1/completions", b"{}").reason == "no_worker"
    finally:
        edge.run(edge.start_worker())
        edge.wait_for_worker()
