"""What engines answer about themselves; whatever cannot be understood is unknown."""

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
        (b'{"data":[{"name":"m"}]}', ()),
        (b'{"error":"unauthorized"}', ()),
    ],
)
def test_models(body: bytes, models: tuple[str, ...]) -> None:
    assert parse_models(body) == models


def test_a_list_without_end_is_cut() -> None:
    body = b'{"data":[' + b",".join(b'{"id":"%d"}' % i for i in range(5000)) + b"]}"
    assert len(parse_models(body)) == MAX_MODELS


@given(st.binary(max_size=100))
def test_any_bytes_are_understood_or_unknown(body: bytes) -> None:
    parse_version(body)
    parse_models(body)
