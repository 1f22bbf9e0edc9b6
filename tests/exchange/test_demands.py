"""What is asked of placement, by request, path and limits."""

import pytest

from sidecar.exchange.demands import demand_of, single_demand
from sidecar.exchange.intake import Request, read_request
from sidecar.exchange.situation import Limits
from sidecar.routing.instance import Role
from sidecar.routing.slots import Demand, Slot
from sidecar.wire.paths import Api
from tests.exchange.exchange_driver import ID, READY

BY_DECODE = Limits(aggregated_role=Role.DECODE)


def read(body: bytes) -> Request:
    request = read_request(ID, Api.COMPLETIONS, {}, body, READY, Limits())
    assert isinstance(request, Request)
    return request


def test_what_one_transfer_carries_is_asked_a_pair() -> None:
    """Of the model that it names."""
    demand = demand_of(read(b'{"model":"m","prompt":"a"}'), Limits(), frozenset())
    assert demand == Demand(model="m")


def test_what_names_no_model_is_for_any() -> None:
    """An empty name is none."""
    for body in (b'{"prompt":"a"}', b'{"model":"","prompt":"a"}'):
        assert demand_of(read(body), Limits(), frozenset()).model is None


def test_what_one_transfer_cannot_carry_is_asked_one_instance() -> None:
    """Of the role that the operator says."""
    demand = demand_of(read(b'{"model":"m","prompt":"a","n":2}'), BY_DECODE, frozenset())
    assert demand == Demand(model="m", is_aggregated=True, aggregated_role=Role.DECODE)


def test_slots_that_were_tried_are_not_asked_for_again() -> None:
    tried = frozenset({Slot("10.0.0.1:8000", 1)})
    assert demand_of(read(b'{"prompt":"a"}'), Limits(), tried).excluded == tried


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize?a=b", "/version"])
def test_a_path_that_runs_no_model_is_for_any_instance(path: str) -> None:
    """Of the model that was named, if its body was looked at."""
    assert single_demand(path, "", BY_DECODE) == Demand(
        is_model_free=True, aggregated_role=Role.DECODE
    )
    assert single_demand(path, "m", BY_DECODE).model == "m"


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/audio/transcriptions", "/score?a"])
def test_a_path_that_runs_a_model_is_placed_as_what_is_served_whole(path: str) -> None:
    assert single_demand(path, "m", BY_DECODE) == Demand(
        model="m", is_aggregated=True, aggregated_role=Role.DECODE
    )
