"""What the headers step knows of the pool, and the answers made of that alone."""

import json

import msgspec
import pytest
from exchange_driver import member

from sidecar.exchange.own_paths import own_answer, why_not_ready
from sidecar.exchange.reasons import Reason
from sidecar.exchange.situation import Situation, survey
from sidecar.routing.instance import Role
from sidecar.routing.view import Member, View

P, D = member(Role.PREFILL, 0), member(Role.DECODE, 1)


def out(one: Member) -> Member:
    return msgspec.structs.replace(one, is_placeable=False)


@pytest.mark.parametrize(
    ("members", "has_prefill", "has_decode"),
    [
        ((), False, False),
        ((P,), True, False),
        ((D,), False, True),
        ((P, D), True, True),
        ((P, out(D)), True, False),
    ],
)
def test_only_placeable_instances_count(
    members: tuple[Member, ...], has_prefill: bool, has_decode: bool
) -> None:
    """Ready for a role is what could be placed now."""
    situation = survey(View(number=1, members=members))
    assert (situation.has_prefill, situation.has_decode) == (has_prefill, has_decode)
    assert situation.is_ready is (has_prefill and has_decode)


def test_a_draining_process_is_not_ready() -> None:
    """Whatever the pool has."""
    situation = survey(View(number=1, members=(P, D), is_draining=True))
    assert not situation.is_ready
    assert why_not_ready(situation) is Reason.DRAINING


def test_models_are_the_sorted_union_of_placeable_instances() -> None:
    """Each once; what cannot be placed on is not offered."""
    named = [
        msgspec.structs.replace(P, models=("b", "a")),
        msgspec.structs.replace(D, models=("b", "c")),
        out(msgspec.structs.replace(D, models=("gone",))),
    ]
    assert survey(View(number=1, members=tuple(named))).models == ("a", "b", "c")


def situation(**what: object) -> Situation:
    known = {"is_draining": False, "has_prefill": True, "has_decode": True, "models": ()}
    return Situation(**(known | what))


@pytest.mark.parametrize("path", ["/health", "/ping", "/health?x=1"])
def test_health_is_readiness(path: str) -> None:
    """200 and empty as vLLM's own; else 503 with the reason."""
    ready = own_answer(path, situation(), {"x-request-id": "e"})
    assert ready is not None
    assert (ready.status, ready.body, ready.headers) == (200, b"", {"x-request-id": "e"})
    for lacking, reason in (
        ({"has_prefill": False}, "no_prefill_instance"),
        ({"has_decode": False}, "no_decode_instance"),
        ({"is_draining": True}, "draining"),
    ):
        unready = own_answer(path, situation(**lacking), {})
        assert unready is not None
        assert (unready.status, unready.headers["x-pd-error"]) == (503, reason)


def test_models_answer_as_openai_does() -> None:
    """Also an empty pool's: an empty list."""
    answer = own_answer("/v1/models", situation(models=("a", "b")), {})
    assert answer is not None
    body = json.loads(answer.body)
    assert body["object"] == "list"
    assert [(m["id"], m["object"]) for m in body["data"]] == [("a", "model"), ("b", "model")]
    empty = own_answer("/v1/models", situation(), {})
    assert empty is not None
    assert json.loads(empty.body)["data"] == []


@pytest.mark.parametrize("path", ["/healthz", "/v1/models/a", "/", "", "/v1/completions"])
def test_other_paths_are_not_ours(path: str) -> None:
    """Exact names only."""
    assert own_answer(path, situation(), {}) is None
