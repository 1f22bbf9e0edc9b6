"""A request until it can be placed: what is said at its headers, and at its body."""

import msgspec
import pytest

from sidecar.exchange.arrival import Arrival, AwaitBody
from sidecar.exchange.body_budget import BodyBudget
from sidecar.exchange.intake import Refusal
from sidecar.exchange.reasons import Reason
from sidecar.exchange.situation import Limits, Situation
from sidecar.routing.model_card import ModelCard
from sidecar.routing.slots import Demand
from sidecar.wire.ext_proc import ImmediateReply
from tests.exchange.exchange_driver import BODY, ID, READY, headers

LIMITS = Limits(max_body_bytes=1000)
SEVERAL = msgspec.structs.replace(
    READY, cards=(ModelCard("a"), ModelCard("m")), serves_alike=False, default_model=None
)
FORM = "multipart/form-data; boundary=b"


def form(model: str) -> bytes:
    head = '--b\r\nContent-Disposition: form-data; name="model"\r\n\r\n'
    return f"{head}{model}\r\n--b--\r\n".encode()


def arrival(situation: Situation = READY, budget: BodyBudget | None = None) -> Arrival:
    return Arrival(ID, situation, LIMITS, budget or BodyBudget(1 << 20))


def test_a_pair_request_waits_for_its_body_and_is_placed_by_it() -> None:
    """What records say of it is known from then on."""
    one = arrival()
    assert one.on_headers(headers(), {}) == AwaitBody()
    assert one.on_body(BODY.body) == Demand(model="m")
    assert one.request is not None
    assert (one.asked.model, one.asked.is_streaming) == ("m", True)
    assert one.asked.body_bytes == len(BODY.body)
    assert not one.is_placed_by_body


def test_our_own_paths_are_answered_at_once() -> None:
    """Also while nothing is placeable."""
    answer = arrival(Situation()).on_headers(headers("/health", method="GET"), {"a": "b"})
    assert isinstance(answer, ImmediateReply)
    assert (answer.status, answer.headers["a"]) == (503, "b")
    kept = arrival().on_headers(headers("/v1/responses/resp_1", method="GET"), {})
    assert kept == Refusal(Reason.STORED_RESPONSE)


@pytest.mark.parametrize(
    ("situation", "more", "reason"),
    [
        (msgspec.structs.replace(READY, is_draining=True), {}, Reason.DRAINING),
        (msgspec.structs.replace(READY, has_prefill=False), {}, Reason.NO_PREFILL_INSTANCE),
        (msgspec.structs.replace(READY, has_decode=False), {}, Reason.NO_DECODE_INSTANCE),
        (READY, {"is_last": True}, Reason.BODY_MISSING),
        (READY, {"content_encoding": "gzip"}, Reason.BODY_ENCODING),
        (READY, {"content_length": "1001"}, Reason.BODY_TOO_LARGE),
        (READY, {"path": "/tokenize", "content_length": "1001"}, Reason.BODY_TOO_LARGE),
        (SEVERAL, {"path": "/tokenize", "content_encoding": "br"}, Reason.BODY_ENCODING),
    ],
)
def test_what_can_be_refused_at_the_headers_is(
    situation: Situation, more: dict[str, object], reason: Reason
) -> None:
    """Before a byte of the body is waited for, or takes room."""
    budget = BodyBudget(1 << 20)
    verdict = arrival(situation, budget).on_headers(headers(**more), {})
    assert isinstance(verdict, Refusal)
    assert verdict.reason is reason
    assert budget.taken == 0


def test_a_single_instance_path_is_placed_at_its_headers() -> None:
    """Its body passes by, and takes no room."""
    budget = BodyBudget(1 << 20)
    one = arrival(READY, budget)
    assert one.on_headers(headers("/tokenize"), {}) == Demand(is_model_free=True)
    assert budget.taken == 0
    assert one.asked.api is None


def test_where_there_are_several_models_its_body_decides() -> None:
    """And says of which model records are."""
    one = arrival(SEVERAL)
    assert one.on_headers(headers("/v1/embeddings"), {}) == AwaitBody()
    assert one.on_body(b'{"model":"a","input":"x"}') == Demand(model="a", is_aggregated=True)
    assert one.is_placed_by_body
    assert one.asked.model == "a"
    assert one.request is None


@pytest.mark.parametrize(("method", "is_last"), [("GET", True), ("GET", False), ("POST", True)])
def test_what_has_no_body_to_say_its_model_is_placed_at_once(method: str, is_last: bool) -> None:
    """In a pool of several models too; what follows a GET is nobody's."""
    event = headers("/version", method=method, is_last=is_last)
    assert arrival(SEVERAL).on_headers(event, {}) == Demand(is_model_free=True)


@pytest.mark.parametrize("situation", [READY, SEVERAL])
def test_a_form_is_always_looked_at(situation: Situation) -> None:
    """What engines must not be sent may be in it."""
    one = arrival(situation)
    path = "/v1/audio/transcriptions"
    assert one.on_headers(headers(path, content_type=FORM), {}) == AwaitBody()
    assert one.on_body(form("m")) == Demand(model="m", is_aggregated=True)


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        ("/v1/completions", b"[]", Reason.BODY_INVALID),
        ("/v1/completions", b'{"prompt":"x"}', Reason.MODEL_MISSING),
        ("/v1/embeddings", b'{"input":"x"}', Reason.MODEL_MISSING),
        ("/v1/responses", b'{"model":"a","store":true}', Reason.STORED_RESPONSE),
        ("/v1/completions", b'{"prompt":"' + b"x" * 1000 + b'"}', Reason.BODY_TOO_LARGE),
    ],
)
def test_what_only_its_body_shows_is_refused_then(path: str, body: bytes, reason: Reason) -> None:
    """In a pool of several models."""
    one = arrival(SEVERAL)
    assert one.on_headers(headers(path), {}) == AwaitBody()
    verdict = one.on_body(body)
    assert isinstance(verdict, Refusal)
    assert verdict.reason is reason


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/audio/translations"])
def test_without_room_for_its_body_it_is_refused(path: str) -> None:
    """At its headers by what it declares, else when the body is there."""
    budget = BodyBudget(5000)
    budget.take(4500)
    declared = arrival(READY, budget).on_headers(headers(path, content_length="600"), {})
    assert declared == Refusal(Reason.TOO_MANY_BODY_BYTES)
    one = arrival(READY, budget)
    assert one.on_headers(headers(path, content_length="10"), {}) == AwaitBody()
    assert one.on_body(b"x" * 600) == Refusal(Reason.TOO_MANY_BODY_BYTES)
    assert budget.taken == 4500


def test_its_room_is_given_back_once() -> None:
    """When it is released, however often."""
    budget = BodyBudget(1 << 20)
    one = arrival(READY, budget)
    one.on_headers(headers(), {})
    one.on_body(BODY.body)
    assert budget.taken == len(BODY.body)
    for _ in range(2):
        one.release()
        assert budget.taken == 0


def test_of_several_models_the_one_that_is_away_is_named() -> None:
    """Where there is but one, the reason says it all."""
    for situation, said in ((SEVERAL, "No prefill instance of m is ready."), (READY, "")):
        one = arrival(situation)
        one.on_headers(headers(), {})
        one.on_body(BODY.body)
        assert one.lack(Reason.NO_PREFILL_INSTANCE) == said
        assert one.lack(Reason.DRAINING) == ""
