"""Requests that are served another way than by a pair, or not at all, by what they ask."""

import json

import pytest

from sidecar.exchange.events import ClientLeft
from sidecar.exchange.situation import Limits, Situation
from sidecar.routing.instance import Role, TransferMode
from sidecar.routing.model_card import ModelCard
from sidecar.routing.slots import Demand, NoPlacement, Placement
from sidecar.wire.ext_proc import BodyReply, HeadersReply, RequestBody
from tests.exchange.exchange_driver import (
    BODY,
    ID,
    PREFILL_OK,
    READY,
    Driver,
    decode,
    headers,
    prefill,
    read_pair,
)
from tests.exchange.exchange_events import REJECTED

SEVERAL = Situation(
    has_prefill=True,
    has_decode=True,
    cards=(ModelCard("a"), ModelCard("b")),
    default_model=None,
)
ALONE = Placement(prefill(), None, TransferMode.READ)


def error(driver: Driver) -> dict[str, object]:
    said: dict[str, object] = json.loads(driver.immediate.body)["error"]
    return said


# --- which model


@pytest.mark.parametrize("body", [b'{"prompt":"x"}', b'{"model":null}', b'{"model":""}'])
def test_where_there_are_several_models_one_must_be_named(body: bytes) -> None:
    """400 that names them: any other choice would be an answer of the wrong model."""
    driver = Driver(situation=SEVERAL).feed(headers(), RequestBody(body))
    assert (driver.immediate.status, driver.reason) == (400, "model_missing")
    assert error(driver)["param"] == "model"
    assert "(a, b)" in str(error(driver)["message"])


def test_where_there_is_one_model_nobody_must_name_it() -> None:
    """The body goes on without, and the record has its name."""
    one = Situation(has_prefill=True, has_decode=True, cards=(ModelCard("m"),), default_model="m")
    driver = Driver(read_pair(), situation=one).feed(headers(), RequestBody(b'{"prompt":"x"}'))
    assert driver.demands == [Demand()]
    assert driver.placed.model == "m"
    assert b"model" not in driver.legs[0].body


def test_a_single_instance_path_waits_for_its_body_where_models_differ() -> None:
    """It is placed by the name in it, and the body goes on to the byte."""
    body = RequestBody(b'{ "model":"b","input":["x"] , "kv_transfer_params":{} }')
    driver = Driver(ALONE, situation=SEVERAL).feed(headers("/v1/embeddings"))
    (reply,) = driver.sent
    assert isinstance(reply, HeadersReply)
    assert not reply.wants_response_headers
    driver.feed(body)
    assert driver.demands == [Demand(model="b", is_aggregated=True)]
    reply = driver.sent[-1]
    assert isinstance(reply, BodyReply)
    assert reply.body is None
    assert reply.set_headers[":path"] == "/v1/embeddings"
    assert driver.replied.is_handed_over
    assert (driver.placed.model, driver.placed.prompt_bytes) == ("b", len(body.body))


@pytest.mark.parametrize(
    ("body", "reason"),
    [(b'{"input":"x"}', "model_missing"), (b"--form\r\n", "body_invalid"), (b"[]", "body_invalid")],
)
def test_a_single_instance_path_must_name_its_model_too(body: bytes, reason: str) -> None:
    """What cannot be read names none, and no instance is guessed."""
    driver = Driver(situation=SEVERAL).feed(headers("/v1/embeddings"), RequestBody(body))
    assert (driver.immediate.status, driver.reason) == (400, reason)


FORM = {"content_type": "multipart/form-data; boundary=b"}


def form(*fields: tuple[str, str]) -> RequestBody:
    """With a file first."""
    head = '--b\r\nContent-Disposition: form-data; name="'
    parts = [f'{head}file"; filename="a.wav"\r\n\r\n\0\r\n']
    parts += [f'{head}{name}"\r\n\r\n{value}\r\n' for name, value in fields]
    return RequestBody("".join([*parts, "--b--\r\n"]).encode())


@pytest.mark.parametrize("path", ["/v1/audio/transcriptions", "/v1/audio/translations?x=1"])
@pytest.mark.parametrize("situation", [READY, SEVERAL], ids=["one model", "several"])
def test_a_form_is_waited_for_whatever_models_there_are(path: str, situation: Situation) -> None:
    """It is placed by the model in it, and goes on to the byte."""
    driver = Driver(ALONE, situation=situation).feed(headers(path, **FORM))
    (reply,) = driver.sent
    assert isinstance(reply, HeadersReply)
    assert not reply.wants_response_headers
    driver.feed(form(("model", "a"), ("model", "b")))
    assert driver.demands == [Demand(model="b", is_aggregated=True)]
    assert (driver.body_reply.body, driver.body_reply.set_headers[":path"]) == (None, path)
    assert driver.replied.is_handed_over


def test_a_form_without_a_model_means_the_only_one() -> None:
    """Where there are several, it is refused."""
    path = "/v1/audio/transcriptions"
    driver = Driver(ALONE).feed(headers(path, **FORM), form())
    assert driver.demands == [Demand(is_aggregated=True)]
    driver = Driver(situation=SEVERAL).feed(headers(path, **FORM), form())
    assert (driver.immediate.status, driver.reason) == (400, "model_missing")


@pytest.mark.parametrize("situation", [READY, SEVERAL], ids=["one model", "several"])
def test_what_a_form_must_not_have_reaches_no_engine(situation: Situation) -> None:
    """400 with a text, as for a JSON body; and no form at all is refused so too."""
    forged = form(("model", "a"), ("vllm_xargs", '{"kv_transfer_params": "x"}'))
    what = headers("/v1/audio/transcriptions", **FORM)
    driver = Driver(situation=situation).feed(what, forged)
    assert (driver.immediate.status, driver.reason) == (400, "body_invalid")
    assert "vllm_xargs must not have kv_transfer_params" in str(error(driver)["message"])
    driver = Driver(situation=situation).feed(what, RequestBody(b'{"model":"a"}'))
    assert (driver.immediate.status, driver.reason) == (400, "body_invalid")


def test_a_form_has_the_limit_of_every_body() -> None:
    """By its length, and by what came; compressed it would not be seen into."""
    limits, path = Limits(max_body_bytes=100), "/v1/audio/transcriptions"
    driver = Driver(limits=limits).feed(headers(path, content_length="101", **FORM))
    assert (driver.immediate.status, driver.reason) == (413, "body_too_large")
    driver = Driver(limits=limits).feed(headers(path, **FORM), form(("prompt", "x" * 50)))
    assert (driver.immediate.status, driver.reason) == (413, "body_too_large")
    driver = Driver().feed(headers(path, content_encoding="gzip", **FORM))
    assert (driver.immediate.status, driver.reason) == (415, "body_encoding")


def test_a_single_instance_path_without_a_body_is_placed_at_once() -> None:
    """Whatever models there are."""
    driver = Driver(ALONE, situation=SEVERAL).feed(headers("/version", method="GET", is_last=True))
    assert driver.demands == [Demand(is_model_free=True)]


def test_a_body_that_a_get_brings_decides_nothing() -> None:
    """It has no meaning there, whatever models there are."""
    driver = Driver(ALONE, situation=SEVERAL).feed(headers("/version", method="GET"))
    assert driver.demands == [Demand(is_model_free=True)]


def test_where_some_have_an_adapter_the_body_is_waited_for() -> None:
    """One default model is not one name: who names the adapter must not come to who lacks it."""
    some = Situation(
        has_prefill=True,
        has_decode=True,
        cards=(ModelCard("a"), ModelCard("l", parent="a")),
        default_model="a",
        serves_alike=False,
    )
    asked = RequestBody(b'{"model":"l","input":"x"}')
    driver = Driver(ALONE, situation=some).feed(headers("/tokenize"), asked)
    assert driver.demands == [Demand(model="l", is_model_free=True)]
    driver = Driver(ALONE, situation=some).feed(headers("/tokenize"), RequestBody(b'{"input":1}'))
    assert driver.demands == [Demand(is_model_free=True)]


def test_what_runs_the_model_is_placed_as_that() -> None:
    """Not on a decode engine that would garble it, unless it may."""
    limits = Limits(aggregated_role=Role.DECODE)
    driver = Driver(ALONE, limits=limits).feed(headers("/rerank"))
    assert driver.demands == [Demand(is_aggregated=True, aggregated_role=Role.DECODE)]


# --- what one transfer cannot carry


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", b'{"model":"m","prompt":"x","n":2}'),
        ("/v1/completions", b'{"model":"m","prompt":"x","max_tokens":0}'),
        ("/v1/chat/completions", b'{"model":"m","messages":[],"echo":true}'),
        ("/v1/chat/completions/batch", b'{"model":"m","messages":[[]]}'),
    ],
)
@pytest.mark.parametrize("role", list(Role))
def test_it_goes_whole_to_one_instance(path: str, body: bytes, role: Role) -> None:
    """Of the role that the operator chose, with the client's fields and no others."""
    target = prefill() if role is Role.PREFILL else decode()
    is_prefill = role is Role.PREFILL
    alone = Placement(target if is_prefill else None, None if is_prefill else target, ALONE.mode)
    driver = Driver(alone, limits=Limits(aggregated_role=role))
    driver.feed(headers(path), RequestBody(body[:-1] + b',"kv_transfer_params":{"x":1}}'))
    assert driver.demands == [Demand(model="m", is_aggregated=True, aggregated_role=role)]
    reply = driver.sent[-1]
    assert isinstance(reply, BodyReply)
    assert reply.body == body
    assert reply.set_headers[":path"] == path
    assert reply.set_headers["x-request-id"] == ID


def test_more_tokens_than_the_model_has_are_refused_by_one_engine() -> None:
    """As it knows the words; the KV of a prefill would be left behind."""
    short = Situation(
        has_prefill=True,
        has_decode=True,
        cards=(ModelCard("m", max_model_len=6),),
        default_model="m",
    )
    driver = Driver(ALONE, situation=short).feed(headers(), BODY)
    assert driver.demands[0].is_aggregated


def test_a_batch_needs_no_decode_instance() -> None:
    """It goes to prefill engines."""
    lone = Situation(has_prefill=True)
    driver = Driver(ALONE, situation=lone).feed(headers("/v1/chat/completions/batch"))
    assert isinstance(driver.sent[0], HeadersReply)


# --- what is kept by one engine


@pytest.mark.parametrize("name", ["store", "background", "previous_response_id"])
def test_a_response_that_would_be_kept_is_refused(name: str) -> None:
    """400 that names the field: no later request would find the engine that has it."""
    body = json.dumps({"model": "m", "input": "x", name: "r" if "id" in name else True}).encode()
    driver = Driver().feed(headers("/v1/responses"), RequestBody(body))
    assert (driver.immediate.status, driver.reason) == (400, "stored_response")
    assert error(driver)["param"] == name
    assert f"`{name}`" in str(error(driver)["message"])


def test_what_is_not_to_be_kept_is_served() -> None:
    """False and null are what a client says that keeps nothing; other APIs have no such fields."""
    said = b'{"model":"m","store":false,"background":null,"previous_response_id":null}'
    assert Driver(read_pair()).feed(headers("/v1/responses"), RequestBody(said)).legs
    assert Driver(read_pair()).feed(headers(), RequestBody(b'{"model":"m","store":true}')).legs


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_a_kept_response_is_asked_of_nobody(method: str) -> None:
    """Refused at the headers, and counted."""
    asked = headers("/v1/responses/resp_1", method=method, is_last=True)
    driver = Driver().feed(asked)
    assert (driver.immediate.status, driver.reason) == (400, "stored_response")
    assert driver.refused.reason == "stored_response"


# --- how much is on its way


def test_a_body_takes_of_the_budget_until_its_exchange_ends() -> None:
    """First what is declared, then what it has; nothing is left."""
    driver = Driver(read_pair()).feed(headers(content_length="500"))
    assert driver.budget.taken == 500
    driver.feed(BODY)
    assert driver.budget.taken == len(BODY.body)
    driver.feed(PREFILL_OK)
    assert driver.budget.taken == 0


@pytest.mark.parametrize("declared", [{}, {"content_length": "900000"}])
def test_a_body_on_its_way_counts_little(declared: dict[str, str]) -> None:
    """Whatever it declares, until it is there or its client has left: to declare costs nothing."""
    driver = Driver().feed(headers(**declared))
    assert driver.budget.taken == 1 << 12
    driver.feed(ClientLeft())
    assert driver.budget.taken == 0


@pytest.mark.parametrize(
    ("declared", "others"), [({}, (1 << 20) - 4_000), ({"content_length": "900000"}, 200_000)]
)
def test_where_there_is_no_room_a_body_is_refused_before_a_byte_of_it(
    declared: dict[str, str], others: int
) -> None:
    """429 that says when to come again."""
    driver = Driver(others_bytes=others).feed(headers(**declared))
    assert (driver.immediate.status, driver.reason) == (429, "too_many_body_bytes")
    assert driver.immediate.headers["retry-after"] == "1"
    assert driver.budget.taken == others
    assert driver.refused.reason == "too_many_body_bytes"


def test_one_body_alone_has_room_whatever_its_size() -> None:
    """Its own limit is another one."""
    large = RequestBody(b'{"model":"m","prompt":"%b"}' % (b"x" * (2 << 20)))
    assert Driver(read_pair()).feed(headers(), large).legs


def test_a_body_that_grew_over_the_room_is_refused() -> None:
    """It was declared to be small, or not at all."""
    driver = Driver(others_bytes=(1 << 20) - 50).feed(headers(content_length="1"))
    driver.feed(RequestBody(b" " * 100))
    assert (driver.immediate.status, driver.reason) == (429, "too_many_body_bytes")
    assert driver.budget.taken == (1 << 20) - 50


def test_an_answer_of_our_own_takes_nothing() -> None:
    """And gives nothing back."""
    driver = Driver(situation=READY).feed(headers("/health", method="GET", is_last=True))
    assert driver.budget.taken == 0


# --- what an answer says


def test_an_error_of_prefill_names_whom_was_asked() -> None:
    """In READ decode was not; the metadata says the same, for the access log."""
    driver = Driver(read_pair()).feed(headers(), BODY, REJECTED)
    assert "x-pd-prefill" in driver.immediate.headers
    assert "x-pd-decode" not in driver.immediate.headers
    assert driver.immediate.metadata["prefill"] == driver.immediate.headers["x-pd-prefill"]
    served = Driver(read_pair()).feed(headers(), BODY, PREFILL_OK).body_reply.metadata
    assert {"prefill", "decode"} <= served.keys()


def test_of_several_models_the_one_that_lacks_instances_is_named() -> None:
    """Else the pool looks well: others have theirs."""
    nobody = NoPlacement("no_decode_instance")
    asked = RequestBody(b'{"model":"b","prompt":"x"}')
    driver = Driver(nobody, situation=SEVERAL).feed(headers(), asked)
    assert error(driver)["message"] == "No decode instance of b is ready."
    driver = Driver(nobody).feed(headers(), asked)
    assert error(driver)["message"] == "No decode instance is ready."
    lone = Driver(NoPlacement("no_prefill_instance"), situation=SEVERAL)
    lone.feed(headers("/v1/embeddings"), asked)
    assert error(lone)["message"] == "No prefill instance of b is ready."
    assert lone.refused.model == "b"
