"""What engines answer about themselves; whatever cannot be understood is unknown."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.routing.instance import Version
from sidecar.wire.description import MAX_MODELS, parse_models, parse_version


@pytest.mark.parametrize(
    ("body", "version"),
    [
        (b'{"version": "0.33.0"}', Version(0, 33)),
        (b'{"version": "0.20.1rc2.dev12+gabcdef"}', Version(0, 20)),
        (b'{"version": "v1.2"}', Version(1, 2)),
        (b'{"version": "0.1.dev9876+gabcdef"}', None),
        (b'{"version": "dev"}', None),
        (b'{"version": 33}', None),
        (b"{}", None),
        (b"<html>", None),
        (b"", None),
        (b"[" * 100_000, None),
    ],
)
def test_version(body: bytes, version: Version | None) -> None:
    assert parse_version(body) == version


@pytest.mark.parametrize(
    ("body", "models"),
    [
        (b'{"object":"list","data":[{"id":"m","root":"/x"},{"id":"lora"}]}', ("m", "lora")),
        (b'{"data":[{"id":"m"},{"id":"m"},{"id":""}]}', ("m",)),
        (b'{"data":[]}', ()),
        (b'{"data":[{"id":"a\\nERROR forged"},{"id":"\\u001b[31m"},{"id":"b c"}]}', ("b c",)),
        (b'{"data":[{"name":"m"}]}', ()),
        (b'{"error":"unauthorized"}', ()),
    ],
)
def test_models(body: bytes, models: tuple[str, ...]) -> None:
    assert tuple(card.name for card in parse_models(body)) == models


def test_a_card_has_what_stays_the_same() -> None:
    """The time and the permission are of the moment of the question: a list that is asked for again
    is then the same."""
    said = (
        b'{"id":"l","object":"model","created":%d,"owned_by":"vllm","root":"/x","parent":"m",'
        b'"max_model_len":4096,"permission":[{"id":"modelperm-%d"}]}'
    )
    (card,) = parse_models(b'{"data":[' + said % (7, 1) + b"]}")
    assert (card.name, card.parent, card.max_model_len, card.created) == ("l", "m", 4096, 7)
    assert json.loads(card.said) == {
        "id": "l", "object": "model", "owned_by": "vllm", "root": "/x", "parent": "m",
        "max_model_len": 4096,
    }  # fmt: skip
    (later,) = parse_models(b'{"data":[' + said % (9, 2) + b"]}")
    assert (later.said, later.created) == (card.said, 9)


@pytest.mark.parametrize("wrong", [b'"7"', b"-1", b"0", b"true", b"7.5", b"null", b"[]"])
def test_what_is_no_length_is_unknown(wrong: bytes) -> None:
    """And the model is known all the same."""
    (card,) = parse_models(b'{"data":[{"id":"m","max_model_len":%b,"parent":%b}]}' % (wrong, wrong))
    assert (card.name, card.max_model_len) == ("m", None)
    assert card.parent in (None, "7")


def test_a_card_that_is_very_long_is_kept_by_its_name() -> None:
    """It lies in every view that goes to a worker."""
    (card,) = parse_models(b'{"data":[{"id":"m","root":"' + b"x" * 5000 + b'"}]}')
    assert (card.name, card.said) == ("m", "")


def test_a_list_without_end_is_cut() -> None:
    body = b'{"data":[' + b",".join(b'{"id":"%d"}' % i for i in range(5000)) + b"]}"
    assert len(parse_models(body)) == MAX_MODELS


@given(st.binary(max_size=100))
def test_any_bytes_are_understood_or_unknown(body: bytes) -> None:
    parse_version(body)
    parse_models(body)
