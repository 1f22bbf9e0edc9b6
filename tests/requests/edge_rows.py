"""What Envoy answers by itself, also while no worker lives, each with the test that shows it."""

from tests.requests.proof import Proof

_ROUTES = "tests/edge/test_edge_routes.py::"
_CORS = "tests/edge/test_edge_cors.py::"
_REFUSALS = "tests/failures/test_edge_rows.py::test_envoys_own_refusals_have_the_same_shape"
_NOT_THERE = "404 `not_found` at once"

EDGE = [
    Proof(
        "vLLM's development, RL, fault-tolerance, adapter-loading, elastic and SageMaker routes; "
        "`/metrics`, `/load`, `/cohere/…`, `/inference/…`",
        f"{_NOT_THERE}, whatever the method",
        _ROUTES + "test_vllms_other_routes_do_not_exist_and_reach_nobody",
    ),
    Proof(
        "dots, doubled slashes and escapes in a path",
        "resolved before the route is chosen; an escaped slash is 400",
        _ROUTES + "test_no_spelling_of_a_route_that_is_not_served_leads_there",
    ),
    Proof(
        "another method on a path of the API",
        "405 `method_not_allowed` with `allow`",
        _ROUTES + "test_another_method_is_refused_and_the_right_ones_are_named",
    ),
    Proof("CONNECT", _NOT_THERE, _REFUSALS),
    Proof("`Upgrade: websocket`", "403 `upgrade_refused` at once", _REFUSALS),
    Proof(
        "a preflight of a page that `edge.cors.allow_origins` names",
        "200 with what the page may send; it can read every answer but 404 and 405 of a wrong path",
        _CORS + "test_a_preflight_is_answered_by_envoy",
    ),
    Proof(
        "a preflight of any other page",
        "405, as any wrong method",
        _CORS + "test_another_pages_preflight_is_a_wrong_method",
    ),
    Proof(
        "an engine's own `access-control-allow-origin`",
        "left out: who may call is said at the edge alone",
        _CORS + "test_an_engines_own_leave_reaches_no_page",
    ),
]
