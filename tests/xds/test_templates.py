"""Placeholders are filled with their types, and nothing is left over on either side."""

import pytest

from sidecar.errors import SnapshotError
from sidecar.xds.templates import Template


def fill(text: str, **values: object) -> dict[str, object]:
    return Template.parse("file.yaml", text).fill(values)


@pytest.mark.parametrize("value", [1, 1.5, "x", None, True, [1, {"a": 2}], {"b": []}])
def test_a_scalar_that_is_a_placeholder_becomes_the_typed_value(value: object) -> None:
    assert fill("a: ${v}", v=value) == {"a": value}
    assert fill("a: [1, '${v}']", v=value) == {"a": [1, value]}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (600, "600s"),
        (600.0, "600s"),
        (0.2, "0.2s"),
        (1e-7, "0.0000001s"),
        (1e7, "10000000s"),
        (0, "0s"),
    ],
)
def test_interpolated_numbers_make_protobuf_durations(value: float, text: str) -> None:
    assert fill("a: ${t_s}s", t_s=value) == {"a": text}


def test_every_placeholder_without_a_value_is_named_with_the_file() -> None:
    with pytest.raises(SnapshotError, match=r"file.yaml: \$\{one\} has no value, \$\{two\} has no"):
        fill("a: ${one}\nb: [1, 'x-${two}-${three}']", three=3)


def test_a_value_that_no_placeholder_uses_is_an_error() -> None:
    with pytest.raises(SnapshotError, match=r"file.yaml: \$\{b\} is used nowhere"):
        fill("a: ${a}", a=1, b=2)


@pytest.mark.parametrize(("value", "left"), [("path", [{"b": "path"}, 2]), (None, [2])])
def test_a_list_item_with_when_is_there_only_with_its_value(
    value: object, left: list[object]
) -> None:
    assert fill("a: [{$when: '${v}', b: '${v}'}, 2]", v=value) == {"a": left}


@pytest.mark.parametrize(("value", "left"), [(True, {"a": {"b": 1}}), (False, {})])
def test_a_mapping_with_when_is_there_only_with_its_value(value: object, left: object) -> None:
    assert fill("a: {$when: '${v}', b: 1}", v=value) == left


def test_a_list_item_with_each_stands_once_for_every_item_with_its_type() -> None:
    text = "a: [0, {$each: '${v}', b: '${each}', c: '${x}-${each}'}, 9]"
    assert fill(text, v=[1, {"d": 2}], x="x") == {
        "a": [0, {"b": 1, "c": "x-1"}, {"b": {"d": 2}, "c": "x-{'d': 2}"}, 9]
    }
    assert fill(text, v=[], x="x") == {"a": [0, 9]}


def test_filling_leaves_the_template_as_it_was() -> None:
    template = Template.parse("f", "x: &x {a: '${v}'}\ny: {<<: *x, b: 1}")
    assert template.fill({"v": 1}) == {"x": {"a": 1}, "y": {"a": 1, "b": 1}}
    assert template.fill({"v": 2}) == {"x": {"a": 2}, "y": {"a": 2, "b": 1}}


@pytest.mark.parametrize("text", ["[1]", "", "a: [", "text"])
def test_what_is_no_mapping_is_refused(text: str) -> None:
    with pytest.raises(SnapshotError, match=r"file\.yaml"):
        Template.parse("file.yaml", text)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("a: '${each}'", "each"),
        ("a: [{$each: '${list}', b: 1}, '${each}']", "each"),
    ],
)
def test_each_stands_inside_of_each_alone(text: str, fault: str) -> None:
    """Said when the file is read, not when a value is missing."""
    with pytest.raises(SnapshotError, match=fault):
        Template.parse("x.yaml", text)


def test_each_takes_a_list() -> None:
    """Text would be taken letter by letter."""
    template = Template.parse("x.yaml", "a: [{$each: '${list}', b: '${each}'}]")
    with pytest.raises(SnapshotError, match="takes a list"):
        template.fill({"list": "text"})
