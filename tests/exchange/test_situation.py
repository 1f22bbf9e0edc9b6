"""What the headers step knows of the pool, and the answers made of that alone."""

import json

import msgspec
import pytest

from sidecar.exchange.own_paths import own_answer, why_not_ready
from sidecar.exchange.reasons import Reason
from sidecar.exchange.situation import Situation, survey
from sidecar.routing.instance import Role
from sidecar.routing.model_card import ModelCard
from sidecar.routing.view import Member, View
from sidecar.wire.paths import Own
from tests.exchange.exchange_driver import member

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
    known = {"is_draining": False, "has_prefill": True, "has_decode": True}
    return Situation(**(known | what))


def test_health_is_readiness() -> None:
    """200 and empty as vLLM's own; else 503 with the reason."""
    ready = own_answer(Own.HEALTH, situation(), {"x-request-id": "e"})
    assert ready is not None
    assert (ready.status, ready.body, ready.headers) == (200, b"", {"x-request-id": "e"})
    for lacking, reason in (
        ({"has_prefill": False}, "no_prefill_instance"),
        ({"has_decode": False}, "no_decode_instance"),
        ({"is_draining": True}, "draining"),
    ):
        unready = own_answer(Own.HEALTH, situation(**lacking), {})
        assert unready is not None
        assert (unready.status, unready.headers["x-pd-error"]) == (503, reason)


CARDS = (
    ModelCard("a", created=7, said='{"id":"a","object":"model","max_model_len":9}'),
    ModelCard("b"),
)


def test_models_answer_as_openai_does() -> None:
    """Also an empty pool's: an empty list."""
    answer = own_answer(Own.MODELS, situation(cards=CARDS), {})
    assert answer is not None
    body = json.loads(answer.body)
    assert body["object"] == "list"
    assert body["data"] == [
        {"id": "a", "object": "model", "max_model_len": 9, "created": 7},
        {"id": "b", "object": "model", "owned_by": "vllm", "created": 0},
    ]
    empty = own_answer(Own.MODELS, situation(), {})
    assert empty is not None
    assert json.loads(empty.body)["data"] == []


def test_a_stored_response_is_no_question_about_us() -> None:
    """It is refused, and counted as that."""
    assert own_answer(Own.STORED_RESPONSE, situation(), {}) is None


def of(member: Member, *cards: ModelCard) -> Member:
    return msgspec.structs.replace(member, models=tuple(card.name for card in cards), cards=cards)


A, B, LORA = ModelCard("a"), ModelCard("b"), ModelCard("l", parent="a")


@pytest.mark.parametrize(
    ("members", "default"),
    [
        ((), ""),
        ((P, msgspec.structs.replace(D, models=())), "m"),
        ((of(P, A), of(D, A)), "a"),
        ((of(P, A, LORA), of(D, A)), "a"),
        ((of(P, B, A), of(D, A, B)), "b"),
        ((of(P, A), of(D, B)), None),
        ((of(P, A, LORA), of(D, B, ModelCard("l", parent="b"))), None),
        ((of(P, A), out(of(D, B))), None),
    ],
)
def test_the_only_model_is_what_a_request_without_one_means(
    members: tuple[Member, ...], default: str | None
) -> None:
    """Adapters do not make it several, and an adapter of the same name does not make it one; a
    model whose instances are away still counts."""
    assert survey(View(number=1, members=members)).default_model == default


def test_a_models_context_is_the_shortest_that_an_instance_has() -> None:
    """Of the pool's only model also for a request that names none."""
    short, long = ModelCard("a", max_model_len=10), ModelCard("a", max_model_len=20)
    pool = survey(View(number=1, members=(of(P, long, B), of(D, short))))
    assert [pool.context_tokens(name) for name in ("a", "", "b", "c")] == [10, 10, None, None]


def test_a_label_is_a_name_that_is_served() -> None:
    """Whatever clients write: else they fill the metrics, also where an instance has not said what
    it serves, and may not for as long as it wants a key that we have not."""
    pool = survey(View(number=1, members=(of(P, A), of(D, A))))
    assert [pool.model_label(name) for name in ("a", "", "x")] == ["a", "a", "other"]
    silent = survey(View(number=1, members=(of(P, A), of(D))))
    assert [silent.model_label(name) for name in ("a", "", "x")] == ["a", "a", "other"]


def test_an_adapter_has_its_models_context() -> None:
    """Engines say no length of adapters."""
    long = ModelCard("a", max_model_len=10)
    pool = survey(View(number=1, members=(of(P, long, LORA), of(D, long, LORA))))
    assert pool.context_tokens("l") == 10


def test_instances_that_differ_in_one_name_do_not_serve_alike() -> None:
    """Then a request that names it must not go to any of them."""
    assert survey(View(number=1, members=(of(P, A, LORA), of(D, LORA, A)))).serves_alike
    assert not survey(View(number=1, members=(of(P, A, LORA), of(D, A)))).serves_alike
    assert not survey(View(number=1, members=(of(P, A), of(D)))).serves_alike
