"""OpenAI bodies: split and joined without touching a value; garbage is a BodyError, never more."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.wire.openai import (
    SUFFIX,
    Api,
    BodyError,
    api_of,
    error_body,
    is_set,
    is_true,
    join,
    needs_one_instance,
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


def test_paths_of_the_apis() -> None:
    """The four P/D paths, with or without a query; nothing else."""
    for api, suffix in SUFFIX.items():
        assert api_of("/v1" + suffix) is api
        assert api_of("/v1" + suffix + "?a=/b") is api
    for path in ("", "/", "/v1", "/v1/completions/", "/v1/embeddings", "/completions"):
        assert api_of(path) is None


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


def test_text_of_broken_utf8_is_none() -> None:
    """The value passes as raw bytes; for the sidecar it names no model."""
    assert text(split(b'{"model":"\xff"}'), "model") is None


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


@pytest.mark.parametrize(
    ("request_fields", "expected"),
    [
        ({}, False),
        ({"n": 1}, False),
        ({"n": None}, False),
        ({"n": 2}, True),
        ({"n": 1.5}, True),
        ({"best_of": 1}, False),
        ({"best_of": 3}, True),
        ({"use_beam_search": True}, True),
        ({"use_beam_search": False}, False),
        ({"echo": True}, True),
        ({"echo": None}, False),
        ({"prompt_logprobs": 0}, True),
        ({"prompt_logprobs": None}, False),
        ({"logprobs": 5}, False),
        ({"prompt": "a"}, False),
        ({"prompt": ["a"]}, False),
        ({"prompt": ["a", "b"]}, True),
        ({"prompt": [1, 2, 3]}, False),
        ({"prompt": [[1, 2]]}, False),
        ({"prompt": [[1], [2]]}, True),
        ({"prompt": []}, False),
        ({"prompt": None}, False),
        ({"prompt_embeds": "AAAA"}, False),
        ({"prompt_embeds": ["AAAA", "BBBB"]}, True),
        ({"prompt": "a", "prompt_embeds": "AAAA"}, True),
        ({"prompt": None, "prompt_embeds": "AAAA"}, False),
    ],
)
def test_what_one_transfer_cannot_carry(request_fields: dict[str, object], expected: bool) -> None:
    """Several choices, beams, echoes or prompts are served by one instance (protocol h)."""
    assert needs_one_instance(fields(**request_fields), Api.COMPLETIONS) is expected


def test_several_prompts_with_white_space_before_them_are_seen() -> None:
    """However the list is written."""
    many = split(b'{"prompt": [' + b" " * 500 + b'"a" , "b"]}')
    assert needs_one_instance(many, Api.COMPLETIONS)


@pytest.mark.parametrize("api", [Api.CHAT, Api.RESPONSES, Api.MESSAGES])
def test_only_completions_have_prompts(api: Api) -> None:
    """A field `prompt` elsewhere means nothing."""
    assert not needs_one_instance(fields(prompt=["a", "b"]), api)
    assert needs_one_instance(fields(n=2), api)


def test_errors_have_openais_shape() -> None:
    """All four keys, null where nothing is known."""
    assert json.loads(error_body("no", "kind", "code")) == {
        "error": {"message": "no", "type": "kind", "param": None, "code": "code"}
    }
