"""JSON from words: every property is there, of its type, and other words make other JSON."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.sim.schema_json import any_object, pieces_of, value_of_schema
from sidecar.sim.words import words_of


def value(schema, seed=b"a"):
    return json.loads(value_of_schema(schema, words_of(seed)))


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ({"type": "string"}, str),
        ({"type": "integer"}, int),
        ({"type": "number"}, float),
        ({"type": "boolean"}, bool),
        ({"type": "null"}, type(None)),
        ({"type": "array", "items": {"type": "string"}}, list),
        ({"type": "object"}, dict),
        ({"type": ["integer", "null"]}, int),
        ({"properties": {"a": {}}}, dict),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, int),
        ({}, str),
        ([], str),
        (None, str),
    ],
)
def test_a_value_has_its_type(schema, kind) -> None:
    assert type(value(schema)) is kind


def test_every_property_is_there_at_any_depth() -> None:
    schema = {
        "type": "object",
        "properties": {
            "who": {"$ref": "#/$defs/person"},
            "tags": {"type": "array", "items": {"enum": ["x", "y"]}},
            "kind": {"const": 7},
        },
        "$defs": {
            "person": {
                "type": "object",
                "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
            }
        },
    }
    found = value(schema)
    assert set(found) == {"who", "tags", "kind"}
    assert set(found["who"]) == {"name", "age"}
    assert found["tags"][0] in ("x", "y")
    assert found["kind"] == 7
    assert found == value(schema)
    assert found != value(schema, b"b")


def test_a_recursive_schema_ends() -> None:
    schema = {"type": "object", "properties": {"next": {"$ref": "#"}}}
    depth, found = 0, value(schema)
    while found:
        depth, found = depth + 1, found["next"]
    assert depth > 2


@given(st.binary(min_size=1, max_size=32))
def test_any_object_follows_from_the_words(seed) -> None:
    found = json.loads(any_object(words_of(seed)))
    assert isinstance(found, dict)
    assert found


@given(st.text())
def test_pieces_are_the_text_and_more_than_one(text) -> None:
    pieces = pieces_of(text)
    assert "".join(pieces) == text
    assert len(pieces) >= 2
