"""Which web pages may call (edge.cors): told by Envoy alone, to preflights and on every answer."""

from typing import Any

import pytest
from edge_client import Answer, ask
from envoy_edge import Edge, eventually

pytestmark = pytest.mark.e2e

FRIENDS = ("https://chat.example.com", "http://localhost:3000")
FRIEND = FRIENDS[1]
STRANGERS = ["https://evil.example.com", "https://chat.example.com.evil.com", "null",
             "https://chat.example.com:8443", "http://chat.example.com", "*", ""]  # fmt: skip
MARK = "access-control-allow-origin"


@pytest.fixture(scope="module")
def edge_settings() -> dict[str, Any]:
    return {"cors_origins": FRIENDS, "cors_max_age_s": 77, "profile_routes": True}


def preflight(edge: Edge, path: str, origin: str, headers: str = "content-type") -> Answer:
    return ask(
        edge,
        "OPTIONS",
        path,
        origin=origin,
        access_control_request_method="POST",
        access_control_request_headers=headers,
    )


@pytest.mark.parametrize("origin", FRIENDS)
@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/models", "/tokenize", "/v1/responses/a", "/ping"]
)
def test_a_preflight_is_answered_by_envoy(edge: Edge, path: str, origin: str) -> None:
    """The headers that OpenAI's client sends are repeated by name: `*` would leave out
    Authorization."""
    asked = "authorization,content-type,x-stainless-lang,x-stainless-something-new"
    answer = preflight(edge, path, origin, asked)
    assert (answer.status, answer.body) == (200, b"")
    assert answer.headers[MARK] == origin
    assert answer.headers["access-control-allow-headers"] == asked
    assert answer.headers["access-control-max-age"] == "77"
    methods = set(answer.headers["access-control-allow-methods"].split(", "))
    assert methods == {"GET", "HEAD", "POST", "DELETE"}
    assert "access-control-allow-credentials" not in answer.headers
    assert edge.seen == []


@pytest.mark.parametrize("origin", STRANGERS)
def test_another_pages_preflight_is_a_wrong_method(edge: Edge, origin: str) -> None:
    """As any OPTIONS is."""
    answer = preflight(edge, "/v1/completions", origin)
    assert (answer.status, answer.reason) == (405, "method_not_allowed")
    assert answer.headers["allow"] == "POST"
    assert MARK not in answer.headers
    assert preflight(edge, "/sleep", origin).status == 404


def test_options_that_is_no_preflight_is_a_wrong_method(edge: Edge) -> None:
    """It names no method to come."""
    assert ask(edge, "OPTIONS", "/v1/completions", origin=FRIEND).status == 405


def test_an_answer_has_our_mark_alone_not_the_engines(edge: Edge) -> None:
    """One value, the page's own, and the headers of ours that a page may read."""
    how = {"x_test_to": edge.engine.address, "x_test_engine": "open"}
    answer = ask(edge, "POST", "/v1/completions", b"{}", origin=FRIEND, **how)
    marks = [value for name, value in answer.pairs if name == MARK]
    assert marks == [FRIEND]
    exposed = set(answer.headers["access-control-expose-headers"].split(", "))
    assert exposed >= {"x-request-id", "x-pd-error", "x-pd-prefill", "x-pd-decode", "retry-after"}
    vary = {value for name, value in answer.pairs if name == "vary"}
    assert {one for value in vary for one in value.split(",")} == {"accept", "origin"}


@pytest.mark.parametrize("origin", [STRANGERS[0], None])
def test_an_engines_own_leave_reaches_no_page(edge: Edge, origin: str | None) -> None:
    """vLLM lets every page read its answers; here that is said by configuration alone."""
    how = {"x_test_to": edge.engine.address, "x_test_engine": "open"}
    answer = ask(edge, "POST", "/tokenize", b"{}", **how, **({"origin": origin} if origin else {}))
    assert answer.status == 200
    assert not [name for name in answer.headers if name.startswith("access-control-")]


def test_errors_of_ours_can_be_read_by_the_page(edge: Edge) -> None:
    """The sidecar's refusal, and Envoy's own after the route was found."""
    ours = ask(edge, "POST", "/v1/completions", b"{}", origin=FRIEND, x_test_immediate="1")
    envoys = ask(edge, "POST", "/v1/completions", b"{}", origin=FRIEND)
    assert (ours.status, envoys.reason) == (503, "instance_gone")
    assert ours.headers[MARK] == envoys.headers[MARK] == FRIEND


def test_preflights_are_answered_while_no_worker_lives(edge: Edge) -> None:
    """And the request that follows gets a 503 that the page can read."""
    edge.run(edge.stop_worker())
    try:
        assert preflight(edge, "/v1/chat/completions", FRIEND).status == 200
        answer = ask(edge, "POST", "/v1/chat/completions", b"{}", origin=FRIEND)
        assert (answer.status, answer.reason) == (503, "no_worker")
        assert answer.headers[MARK] == FRIEND
    finally:
        edge.run(edge.start_worker())
        edge.wait_for_worker()


def test_any_origin_and_none_come_over_xds(edge: Edge) -> None:
    """A change is one of the routes, so no connection is touched."""

    def allowed() -> bool:
        return preflight(edge, "/v1/completions", STRANGERS[0]).status == 200

    try:
        edge.publish([edge.engine.address], cors_origins=("*",))
        eventually(allowed, "any origin may call")
        answer = preflight(edge, "/v1/completions", STRANGERS[0])
        assert answer.headers[MARK] == STRANGERS[0]
        edge.publish([edge.engine.address], cors_origins=())
        eventually(lambda: not allowed(), "no origin may call")
        assert preflight(edge, "/v1/completions", FRIEND).status == 405
    finally:
        edge.publish([edge.engine.address])
        eventually(lambda: preflight(edge, "/ping", FRIEND).status == 200, "as it was")
