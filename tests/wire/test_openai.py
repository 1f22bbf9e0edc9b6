"""OpenAI bodies: split and joined without touching a value; garbage is a BodyError, never more."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.wire.openai import (
    MAX_KEYS,
    MAX_STRINGS,
    BodyError,
    error_body,
    is_set,
    is_true,
    join,
    split,
    text,
)

# Lone surrogates are not Unicode: msgspec refuses them, and so would a tokenizer.
words = st.text(st.characters(exclude_categories=["Cs"]))
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | words,
    lambda inner: st.lists(inner) | st.dictionaries(words, inner),
    max_leaves=8,
)
objects = st.dictionaries(words, values)


@given(objects, st.booleans(), st.sampled_from([None, 1, "\t"]))
def test_split_and_join_keep_the_object(
    value: dict[str, object], is_ascii: bool, indent: int | str | None
) -> None:
    """What was split and joined means the same, however it was written."""
    written = json.dumps(value, ensure_ascii=is_ascii, indent=indent).encode()
    assert json.loads(join(split(written))) == value


@given(objects)
def test_split_of_a_joined_object_gives_the_same_bytes(value: dict[str, object]) -> None:
    """Values are bytes that nobody re-encodes: a second round changes nothing."""
    fields = split(json.dumps(value, indent=3).encode())
    assert {k: bytes(v) for k, v in split(join(fields)).items()} == {
        k: bytes(v) for k, v in fields.items()
    }


WEIRD = (
    b' {\n"prompt" : "\\u00e9\\/\\ud83d\\ude00" , "big":123456789012345678901234567890,\r\n'
    b'"f":1.0e+00, "nested": { "a" :[ 1 ,2 ] , "a": null }, "\\u0065":"\xc3\xa9" }\t'
)


def test_values_stay_as_they_were_written() -> None:
    """Escapes, long numbers, white space and repeated keys inside a value are kept to the byte."""
    fields = split(WEIRD)
    assert {k: bytes(v) for k, v in fields.items()} == {
        "prompt": b'"\\u00e9\\/\\ud83d\\ude00"',
        "big": b"123456789012345678901234567890",
        "f": b"1.0e+00",
        "nested": b'{ "a" :[ 1 ,2 ] , "a": null }',
        "e": b'"\xc3\xa9"',
    }


def test_of_a_repeated_key_the_last_counts() -> None:
    """As in vLLM; so a forbidden or checked field cannot hide behind a second one."""
    assert bytes(split(b'{"n":1,"n":2}')["n"]) == b"2"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"\xff\xfe",
        b'{"\xff":1}',
        b"\xef\xbb\xbf{}",
        b"[]",
        b'["a"]',
        b'"text"',
        b"1",
        b"null",
        b"true",
        b"{",
        b'{"a"}',
        b'{"a":}',
        b'{"a":1,}',
        b'{"a":1}{}',
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b'{"a":01}',
        b"{'a':1}",
        b'{"a":"\\ud800"}',
        b'{"\\ud800":1}',
        b'{"a":"\x01"}',
        b"{1:2}",
        b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
        b'{"a":' * 200_000 + b"1" + b"}" * 200_000,
        '{"a":1}'.encode("utf-16"),
    ],
    ids=lambda body: repr(body[:12]),
)
def test_what_is_no_json_object_is_a_body_error(body: bytes) -> None:
    """With a text for the client, never another exception."""
    with pytest.raises(BodyError) as caught:
        split(body)
    assert 0 < len(str(caught.value)) < 200


@given(
    st.binary(max_size=60) | st.text(max_size=60).map(lambda t: t.encode("utf-8", "surrogatepass"))
)
def test_garbage_is_a_body_error_or_an_object(body: bytes) -> None:
    """No input raises anything else."""
    try:
        fields = split(body)
    except BodyError:
        return
    assert split(join(fields)) == fields


def fields(**values: object) -> dict[str, msgspec.Raw]:
    return split(json.dumps(values).encode())


@pytest.mark.parametrize(
    ("value", "expected"),
    [("m", "m"), ("é\n", "é\n"), ("", ""), (1, None), (None, None), (["m"], None), ({}, None)],
)
def test_text_is_a_json_string_or_none(value: object, expected: str | None) -> None:
    """Of another type it is as good as absent."""
    assert text(fields(model=value), "model") == expected
    assert text({}, "model") is None


@pytest.mark.parametrize(
    ("body", "where"),
    [
        (b'{"model":"\xff"}', 10),
        (b'{"a":{"b":["\xc0\xaf"]}}', 12),  # a slash, longer than it must be
        (b'{"a":"\xed\xa0\x80"}', 6),  # half of a surrogate pair
        (b'{"a":"' + b"x" * 300_000 + b'\xe9"}', 300_006),
        (b'{"a":"' + b"x" * ((1 << 18) - 7) + "é".encode() + b'\xff"}', (1 << 18) + 1),
        (b'{"a":"\xc3', 6),
    ],
    ids=["value", "overlong", "surrogate", "late", "after-a-step", "cut"],
)
def test_what_is_no_utf8_is_found_wherever_it_is(body: bytes, where: int) -> None:
    """Values are not decoded, and still nothing reaches an engine that it could not read."""
    with pytest.raises(BodyError, match=f"not UTF-8 at byte {where}: "):
        split(body)


def test_utf8_that_lies_across_a_step_is_fine() -> None:
    """A character may begin in one step and end in the next."""
    for shift in range(4):
        text_ = "x" * shift + "😀" * (1 << 17)
        body = json.dumps({"a": text_}, ensure_ascii=False).encode()
        assert json.loads(bytes(split(body)["a"])) == text_


@pytest.mark.parametrize(
    "body",
    [
        b"{%b}" % b",".join(b'"%d":1' % i for i in range(MAX_KEYS + 1)),
        b'{"a":{"b":[%b{}]}}' % (b'{"" :1},' * (MAX_KEYS + 1)),
        b'{"a":[%b""]}' % (b'":",' * (MAX_STRINGS + 1)),
    ],
    ids=["top", "deep", "strings"],
)
def test_what_would_take_seconds_to_read_is_refused(body: bytes) -> None:
    """A worker that makes a dict of millions of keys answers nobody meanwhile."""
    with pytest.raises(BodyError, match="keys"):
        split(body)


@pytest.mark.parametrize(
    "text_",
    ["a:b " * MAX_KEYS, '"a":1,' * MAX_KEYS, "\\:" * MAX_KEYS, ':"' * MAX_KEYS],
    ids=["colons", "json", "escapes", "quotes"],
)
def test_a_text_may_look_like_keys(text_: str) -> None:
    """Keys are counted, not what stands in a string."""
    body = json.dumps({"prompt": text_, "more": {"a": 1}}).encode()
    assert json.loads(bytes(split(body)["prompt"])) == text_


def test_a_string_without_an_end_is_passed_over_once() -> None:
    """From each quote in it anew it would take for ever; this test would not end."""
    with pytest.raises(BodyError, match="not valid JSON"):
        split(b'{"a":"' + b'\\":' * 1_000_000)


def test_a_number_that_no_engine_would_read_is_refused() -> None:
    """Python's JSON parser takes 4300 digits; as a string it is a prompt like any other."""
    digits = b"7" * 4301
    with pytest.raises(BodyError, match="'max_tokens' is a number of more than 4300 digits"):
        split(b'{"max_tokens":' + digits + b"}")
    with pytest.raises(BodyError, match="digits"):
        split(b'{"seed":-' + digits + b"}")
    assert json.loads(bytes(split(b'{"prompt":"' + digits + b'"}')["prompt"])) == digits.decode()


def test_is_true_and_is_set() -> None:
    """Only `true` is true; all but null and false is set."""
    given = fields(t=True, f=False, z=None, zero=0, s="true")
    assert [is_true(given, k) for k in ("t", "f", "z", "zero", "s", "-")] == [True] + [False] * 5
    assert [is_set(given, k) for k in ("t", "f", "z", "zero", "s", "-")] == [
        True,
        False,
        False,
        True,
        True,
        False,
    ]


def test_errors_have_openais_shape() -> None:
    """All four keys, null where nothing is known."""
    assert json.loads(error_body("no", "kind", "code")) == {
        "error": {"message": "no", "type": "kind", "param": None, "code": "code"}
    }
