"""What a router reads of a form, beside what Starlette reads of it."""

import json
import os
from base64 import b64encode
from time import process_time
from urllib.parse import urlencode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.wire.forbidden import FORBIDDEN
from sidecar.wire.form import MAX_KEPT_BYTES, MAX_PARTS, MAX_URLENCODED_BYTES, model_of
from sidecar.wire.openai import BodyError
from tests.fuzz.forms import agrees, starlette_reads

BOUNDARY = b"0123456789abcdef"
MULTIPART = "multipart/form-data; boundary=0123456789abcdef"
URLENCODED = "application/x-www-form-urlencoded"
FILE = b'form-data; name="file"; filename="a.wav"'
XARGS = b'form-data; name="vllm_xargs"'
FORGED = b'{"kv_transfer_params": "x"}'
UTF_16 = FORGED.decode().encode("utf-16")


def multipart(*parts: tuple[bytes, bytes], boundary: bytes = BOUNDARY) -> bytes:
    """Each a Content-Disposition and a value."""
    head = b"--" + boundary + b"\r\nContent-Disposition: "
    made = b"".join(head + what + b"\r\n\r\n" + value + b"\r\n" for what, value in parts)
    return made + b"--" + boundary + b"--\r\n"


def named(name: str, value: bytes) -> tuple[bytes, bytes]:
    return b'form-data; name="' + name.encode() + b'"', value


GOOD = multipart((FILE, b"RIFF\x00\r\n--\xff"), named("model", b"whisper"))


def refused(content_type: str, body: bytes) -> str:
    with pytest.raises(BodyError) as error:
        model_of(content_type, body)
    return str(error.value)


def read(content_type: str, body: bytes) -> tuple[str, str]:
    """The model, or why not."""
    try:
        return model_of(content_type, body), ""
    except BodyError as error:
        return "", str(error)


# --- what honest clients send

WAYS = {
    "httpx": (MULTIPART, GOOD),
    "a boundary in quotes": ('multipart/form-data; boundary="0123456789abcdef"', GOOD),
    "another case": ("Multipart/Form-Data; Boundary=0123456789abcdef", GOOD),
    "a charset": (MULTIPART + "; charset=UTF-8", GOOD),
    "a charset of Java's": ("multipart/form-data; charset=ISO-8859-1" + MULTIPART[19:], GOOD),
    "a semicolon at the end": (MULTIPART + ";", GOOD),
    "a line break first": (MULTIPART, b"\r\n" + GOOD),
    "no line break last": (MULTIPART, GOOD[:-2]),
    "an epilogue": (MULTIPART, GOOD + b"bye"),
    "the model first": (MULTIPART, multipart(named("model", b"whisper"), (FILE, b"x"))),
    "names without quotes": (
        MULTIPART,
        multipart(
            (b"form-data; name=file; filename=a.wav; filename*=utf-8''a.wav", b"x"),
            (b"form-data; name=model", b"whisper"),
        ),
    ),
    "a file's name with escapes": (
        MULTIPART,
        multipart(
            (b'form-data; name="file"; filename="a\\"; name=\\"model.wav"', b"x"),
            named("model", b"whisper"),
        ),
    ),
    "a file's name in UTF-8": (
        MULTIPART,
        multipart(
            ('form-data; name="file"; filename="für;x=1.wav"'.encode(), b"x"),
            named("model", b"whisper"),
        ),
    ),
    "more headers": (
        MULTIPART,
        GOOD.replace(b'.wav"', b'.wav"\r\nContent-Type: audio/wav\r\nContent-Length: 7'),
    ),
    "a boundary of dashes": (
        "multipart/form-data; boundary=" + "-" * 24 + "x",
        multipart((FILE, b"-" * 99), named("model", b"whisper"), boundary=b"-" * 24 + b"x"),
    ),
    "parameters of an engine": (
        MULTIPART,
        multipart((XARGS, b'{"session_id": "7"}'), named("model", b"whisper"), (FILE, b"x")),
    ),
    "no parameters of an engine": (
        MULTIPART,
        multipart((XARGS, b""), (XARGS, b"null"), named("model", b"whisper"), (FILE, b"x")),
    ),
    "urlencoded": (URLENCODED, b"prompt=a+b&model=whisper&file="),
    "urlencoded, with escapes": (URLENCODED, b"%6dodel=%77hisper"),
    "a value that is no UTF-8": (MULTIPART, multipart(named("prompt", b"\xe4"), *(
        (FILE, b"x"), named("model", b"whisper")))),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_a_form_that_clients_send_is_read(way: str) -> None:
    """Its model, as Starlette has it."""
    content_type, body = WAYS[way]
    assert model_of(content_type, body) == "whisper"
    agrees("whisper", starlette_reads(content_type, body))


@pytest.mark.parametrize(
    ("parts", "model"),
    [
        ([], ""),
        ([b""], ""),
        ([b"a", b"b"], "b"),
        ([b"a", b""], ""),
        (["größe".encode()], "größe"),
        ([b"\xe4"], "ä"),
    ],
)
def test_the_last_model_counts(parts: list[bytes], model: str) -> None:
    """As in FastAPI, where an empty one is none; text that is no UTF-8 is latin-1."""
    body = multipart((FILE, b"x"), *(named("model", part) for part in parts))
    assert model_of(MULTIPART, body) == model
    agrees(model, starlette_reads(MULTIPART, body))


# --- what only a router may set

SPELLINGS = {
    "plain": FORGED,
    "an escape": b'{"\\u006bv_transfer_params": "x"}',
    "twice, the last good": b'{"kv_transfer_params": "x", "kv_transfer_params": null}',
    "null": b'{"kv_transfer_params": null}',
    "a number that is none": b'{"kv_transfer_params": NaN}',
    "NaN beside it": b'{"a": -Infinity, "kv_transfer_params": "x"}',
    "a lone surrogate beside it": b'{"a": "\\ud800", "kv_transfer_params": "x"}',
    "blanks": b' \r\n\t{ "kv_transfer_params"\n: "x" }\r\n ',
    "no UTF-8 beside it": b'{"a": "\xff", "kv_transfer_params": "x"}',
    "the encoder's": b'{"ec_transfer_params": {}}',
    "a request id": b'{"request_id": "mine"}',
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_parameters_of_a_router_are_refused_however_they_are_spelled(spelling: str) -> None:
    """In either kind of form, and wherever a good one stands beside it."""
    forged = (XARGS, SPELLINGS[spelling])
    good = (XARGS, b"{}")
    for parts in ([forged], [forged, good], [good, forged], [(FILE, b"x"), forged, (FILE, b"x")]):
        assert "only the router may set it" in refused(MULTIPART, multipart(*parts))
    body = urlencode({"vllm_xargs": SPELLINGS[spelling]}).encode()
    if spelling != "no UTF-8 beside it":
        assert "only the router may set it" in refused(URLENCODED, body)
    assert refused(URLENCODED, body + b"&vllm_xargs=%7B%7D")


@pytest.mark.parametrize("field", FORBIDDEN)
def test_they_are_refused_as_fields_too(field: str) -> None:
    """An engine keeps fields that it does not know."""
    assert field in refused(MULTIPART, multipart((FILE, b"x"), named(field, b"x")))
    assert field in refused(URLENCODED, f"a=1&{field.replace('_', '%5F')}=x".encode())


HIDDEN = {
    "only the router may set it": {
        "no quotes": multipart((b"form-data; name=vllm_xargs", FORGED)),
        "another case": multipart((b'Form-Data; NAME="vllm_xargs"', FORGED)),
        "blanks": multipart((b'form-data ;\tname="vllm_xargs" ', FORGED)),
        "behind a file": multipart((FILE, b"x"), (XARGS, FORGED)),
        "filename*": multipart((XARGS + b"; filename*=utf-8''x", FORGED)),
    },
    "must be no file": {
        "a file": multipart((XARGS + b'; filename="x"', FORGED)),
        "a file without a name": multipart((XARGS + b'; filename=""', FORGED)),
    },
    "no plain name": {
        "name*": multipart((b"form-data; name*=utf-8''vllm%5Fxargs", FORGED)),
        "name* beside name": multipart((b"form-data; name=\"a\"; name*=utf-8''vllm_xargs", FORGED)),
        "name in pieces": multipart((b'form-data; name*0="vllm_"; name*1="xargs"', FORGED)),
        "name twice": multipart((b'form-data; name="a"; name="vllm_xargs"', FORGED)),
        "name twice, the other way": multipart((b'form-data; name="vllm_xargs"; name="a"', FORGED)),
        "an escape in the name": multipart((b'form-data; name="vllm\\_xargs"', FORGED)),
        "quotes that do not end": multipart(
            (b'form-data; filename="a\\\\"; name="a"; b="; name="vllm_xargs"', FORGED)
        ),
        "a file or not": multipart(
            (b'form-data; a="\\\\"; filename="\\\\"; name="vllm_xargs"', FORGED)
        ),
        "another disposition": multipart((b'attachment; name="vllm_xargs"', FORGED)),
        "no disposition": multipart((b'name="vllm_xargs"', FORGED)),
        "a NUL": multipart((XARGS + b"\0", FORGED)),
    },
    "two Content-Disposition": {
        "two dispositions": multipart(
            (b'form-data; name="a"\r\ncontent-disposition: ' + XARGS, FORGED)
        ),
    },
    "cannot be read": {
        "a folded header": multipart((b'form-data;\r\n name="vllm_xargs"', FORGED)),
    },
    "boundary where no part begins": {
        "behind a boundary with blanks": multipart((FILE, b"x")).replace(b"--\r\n", b" \t\r\n")
        + multipart((XARGS, FORGED))[20:],
        "behind the end": multipart((FILE, b"x")) + multipart((XARGS, FORGED)),
    },
    "has no end": {
        "without an end": multipart((XARGS, FORGED))[:-4],
        "line feeds alone": multipart((FILE, b"x"), (XARGS, FORGED)).replace(b"\r\n", b"\n"),
    },
    "does not begin with its boundary": {
        "a preamble": b"hello\r\n" + multipart((XARGS, FORGED)),
        "a preamble behind a line break": b"\r\nhello" + multipart((XARGS, FORGED)),
    },
    "not valid JSON": {
        "base64": multipart(
            (XARGS + b"\r\nContent-Transfer-Encoding: base64", b64encode(FORGED)),
        ),
        "another charset of the part": multipart(
            (XARGS + b"\r\nContent-Type: text/plain; charset=utf-16", UTF_16)
        ),
        "a form in it": multipart(
            (
                XARGS + b"\r\nContent-Type: multipart/mixed; boundary=inner",
                b"--inner\r\n\r\n" + FORGED + b"\r\n--inner--",
            )
        ),
        "too deep": multipart((XARGS, b'{"kv_transfer_params":' + b"[" * 30_000)),
        "a number too long": multipart((XARGS, b'{"kv_transfer_params": 1' + b"0" * 5000 + b"}")),
    },
    "may have 65536 bytes": {
        "far behind": multipart((XARGS, b" " * MAX_KEPT_BYTES + FORGED)),
        "far behind, in many": multipart(*[(XARGS, b" " * 600 + b"1")] * 110, (XARGS, FORGED)),
    },
    "more than 128 parts": {
        "one part too many": multipart(*[named("a", b"x")] * MAX_PARTS, (XARGS, FORGED)),
    },
}
"""By the reason that is given."""


@pytest.mark.parametrize(
    ("reason", "way"), [(reason, way) for reason, ways in HIDDEN.items() for way in ways]
)
def test_they_cannot_be_hidden(reason: str, way: str) -> None:
    """A form that engines might read in another way is refused, whatever this version says."""
    assert reason in refused(MULTIPART, HIDDEN[reason][way])


def test_a_nested_form_is_a_value() -> None:
    """It is not looked into, here or in Starlette."""
    inner = multipart((XARGS, FORGED), boundary=b"inner")
    head = b'form-data; name="a"\r\nContent-Type: multipart/mixed; boundary=inner'
    body = multipart((head, inner), named("model", b"m"))
    assert model_of(MULTIPART, body) == "m"
    agrees("m", starlette_reads(MULTIPART, body))


OTHER_TYPES = {
    "none": "",
    "JSON": "application/json",
    "text": "text/plain",
    "bytes": "application/octet-stream",
    "another multipart": MULTIPART.replace("form-data", "mixed"),
    "no boundary": "multipart/form-data",
    "an empty boundary": 'multipart/form-data; boundary=""',
    "a nameless boundary": "multipart/form-data; =0123456789abcdef",
    "boundary*": "multipart/form-data; boundary*=utf-8''0123456789abcdef",
    "two boundaries": MULTIPART + "; boundary=x",
    "two boundaries, the last good": "multipart/form-data; boundary=x" + MULTIPART[19:],
    "two headers": MULTIPART + "," + MULTIPART,
    "a list in quotes": 'multipart/form-data; boundary="0123456789abcdef,x"',
    "an escape": 'multipart/form-data; boundary="0123456789abcde\\f"',
    "UTF-16": MULTIPART + "; charset=utf-16",
    "UTF-7": MULTIPART + "; charset=utf-7",
    "EBCDIC": MULTIPART + "; charset=cp037",
    "escapes of Python": MULTIPART + "; charset=unicode_escape",
    "an unknown charset": MULTIPART + "; charset=x",
}


@pytest.mark.parametrize("kind", OTHER_TYPES)
def test_what_is_no_form_is_refused_by_its_type(kind: str) -> None:
    """With a text that says so; no instance could place it, or all see one form in it."""
    assert refused(OTHER_TYPES[kind], multipart((FILE, b"x"), named("model", b"m")))


def test_a_boundary_has_its_limit() -> None:
    """The parser's own."""
    body = multipart((FILE, b"x"), boundary=b"b" * 300)
    assert "Boundary length" in refused("multipart/form-data; boundary=" + "b" * 300, body)


def test_urlencoded_forms_are_small() -> None:
    """One more byte is refused: the parser takes its time for each `&`."""
    assert model_of(URLENCODED, b"model=m" + b"&" * (MAX_URLENCODED_BYTES - 7)) == "m"
    assert "bytes" in refused(URLENCODED, b"model=m" + b"&" * (MAX_URLENCODED_BYTES - 6))
    assert ";" in refused(URLENCODED, b"a=1;vllm_xargs=%7B%7D")


# --- as Starlette reads

field_names = st.sampled_from(("model", "vllm_xargs", "prompt", "file", "größe", "request_id", ""))
small = st.binary(max_size=12) | st.sampled_from(
    (FORGED, b"{}", b"\r\n--", b"--" + BOUNDARY, b"\r\n--" + BOUNDARY, b'{"a": [1]}', b"m", b"\r")
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(field_names, small, st.booleans()), max_size=4), st.binary(max_size=4))
def test_a_form_is_read_as_starlette_reads_it(
    parts: list[tuple[str, bytes, bool]], epilogue: bytes
) -> None:
    """The same model, nothing forged in it; and refused only for a reason that is there."""
    made = (
        (b'form-data; name="' + name.encode() + b'"' + b'; filename="x"' * is_file, value)
        for name, value, is_file in parts
    )
    body = multipart(*made) + epilogue
    model, reason = read(MULTIPART, body)
    if reason:
        known = ("router may set", "boundary", "not valid JSON", "be no file", "cannot be read")
        assert any(text in reason for text in known)
        return
    seen = starlette_reads(MULTIPART, body)
    agrees(model, seen)
    assert seen is not None
    assert [name for name, _ in seen] == [name for name, _, _ in parts]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(("model", "a", "vllm_xargs")), st.text(max_size=6))))
def test_an_urlencoded_form_is_read_as_starlette_reads_it(pairs: list[tuple[str, str]]) -> None:
    """With any text in its fields."""
    body = urlencode(pairs, errors="surrogatepass").encode()
    model, reason = read(URLENCODED, body)
    if reason:
        assert "not valid JSON" in reason
        return
    agrees(model, starlette_reads(URLENCODED, body))


# --- cost

MB = 1 << 20
SIZES = {
    "audio": lambda: os.urandom(25 * MB),
    "zeros": lambda: bytes(25 * MB),
    "line breaks": lambda: b"\r\n--" * (25 * MB // 4),
    "almost boundaries": lambda: (b"\r\n--" + BOUNDARY[:-1]) * (25 * MB // 19),
}


@pytest.mark.parametrize("what", SIZES)
def test_a_file_of_25_mb_holds_up_a_worker_for_a_moment(what: str) -> None:
    """Under 0.25 s of CPU whatever is in it: seen 2 to 25 ms."""
    body = multipart((FILE, SIZES[what]()), named("model", b"m"))
    begin = process_time()
    assert model_of(MULTIPART, body) == "m"
    assert process_time() - begin < 0.25


HOSTILE = {
    "spaces behind the boundary": b"--" + BOUNDARY + b" " * (25 * MB),
    "boundaries and a byte": (b"--" + BOUNDARY + b"x\r\n") * (25 * MB // 21),
    "boundaries alone": (b"--" + BOUNDARY + b"\r\n") * (25 * MB // 20),
    "a header without an end": b"--" + BOUNDARY + b"\r\n" + b"a" * (25 * MB),
    "a value of a header without an end": b"--" + BOUNDARY + b"\r\na: " + b"a" * (25 * MB),
    "spaces in a header": b"--" + BOUNDARY + b"\r\na: " + b" " * (25 * MB),
    "a preamble of line breaks": b"\r\n" * (12 * MB) + GOOD,
    "a field": multipart((XARGS, b" " * (25 * MB))),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_no_form_takes_the_parser_long(what: str) -> None:
    """It is refused as fast: 25 MB byte by byte are seconds."""
    begin = process_time()
    refused(MULTIPART, HOSTILE[what])
    assert process_time() - begin < 0.25


def test_many_small_parts_are_still_fast() -> None:
    """As many as there may be, with as many headers as the parser takes."""
    more = b"".join(b"\r\nx-%d: " % n + b"y" * 4000 for n in range(7))
    body = multipart(*[(b'form-data; name="a"' + more, json.dumps({}).encode())] * MAX_PARTS)
    begin = process_time()
    assert model_of(MULTIPART, body) == ""
    assert process_time() - begin < 0.25
