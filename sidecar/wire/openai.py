"""OpenAI-style requests: the JSON body split at its top level, and its fields read.

Values stay raw bytes (`msgspec.Raw`): a 1 MB prompt is scanned once, never decoded or re-encoded,
so everything that shapes the prompt is byte-identical on both legs (protocol c). Knows nothing of
instances or of Envoy.
"""

import codecs
import re
from functools import lru_cache

import msgspec

Fields = dict[str, msgspec.Raw]
"""A JSON object's members: name -> raw JSON value. Of a repeated key the last counts, as in
vLLM."""

TRUE, FALSE, NULL, ONE = (msgspec.Raw(v) for v in (b"true", b"false", b"null", b"1"))


class BodyError(ValueError):
    """The body is not what its path takes. The text says why, for the client to read."""


MAX_DIGITS = 4300
"""of a number: longer ones are refused by Python's JSON parser, and so by the engines"""
_UTF8_STEP_BYTES = 1 << 18


MAX_KEYS = 100_000
"""Of a body's objects together, at any depth. A dict of so many takes 80 ms, one of all that fit
into 64 MiB took 5 s and 1.1 GB."""
MAX_STRINGS = 1_000_000
"""that are looked through for keys, in a body with more colons than that many keys"""


def split(body: bytes) -> Fields:
    """Split a JSON object at its top level. Raises BodyError with a reason a client understands."""
    _check_utf8(body)
    _check_keys(body)
    try:
        fields = _DECODER.decode(body)
    except RecursionError:
        raise BodyError("the JSON body is nested too deeply") from None
    except msgspec.ValidationError:
        raise BodyError("the body must be one JSON object") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BodyError(f"the body is not valid JSON: {error}") from None
    for name, value in fields.items():
        if len(memoryview(value)) > MAX_DIGITS and bytes(memoryview(value)[:1]) in _NUMBER_STARTS:
            raise BodyError(f"{name[:64]!r} is a number of more than {MAX_DIGITS} digits")
    return fields


_NUMBER_STARTS = frozenset(b"%c" % byte for byte in b"-0123456789")


def _check_keys(body: bytes) -> None:
    """Before anything is made of them. Looked for only where so many different ones have room: to
    count colons takes as long as all else together."""
    if len(body) < MAX_KEYS * len('"xy":1,') or body.count(b":") <= MAX_KEYS:
        return
    keys = 0
    for seen, string in enumerate(_STRING.finditer(body)):
        keys += string[1] is not None
        if keys > MAX_KEYS or seen > MAX_STRINGS:
            raise BodyError(f"the body has more than {MAX_KEYS} keys, or too many strings")


_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"([ \t\r\n]*+:)?)?', re.DOTALL)
"""With the colon that makes it a key. Possessive, and content without an end, so that it passes
over each byte once whatever is written there."""


def _check_utf8(body: bytes) -> None:
    """Values are not looked into, so nobody else would find it before the engines. In steps: as one
    string a body may need four times its size."""
    if body.isascii():
        return
    decoder, view = codecs.getincrementaldecoder("utf-8")(), memoryview(body)
    at = 0
    try:
        for at in range(0, len(body), _UTF8_STEP_BYTES):
            decoder.decode(view[at : at + _UTF8_STEP_BYTES])
        at = len(body)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        pending = len(decoder.getstate()[0])
        where = max(0, at - pending) + error.start
        raise BodyError(f"the body is not UTF-8 at byte {where}: {error.reason}") from None


_DECODER = msgspec.json.Decoder(Fields)


def join(fields: Fields) -> bytes:
    """The inverse of `split`: one JSON object, members in order, values as they are."""
    parts: list[bytes | msgspec.Raw] = [b"{"]
    for name, value in fields.items():
        parts += (_short_key(name) if len(name) < 64 else _key(name), value, b",")
    parts[-1] = b"}"  # in place of the last comma
    return b"".join(parts) if fields else b"{}"


@lru_cache(maxsize=1024)
def _short_key(name: str) -> bytes:
    return _key(name)


def _key(name: str) -> bytes:
    return msgspec.json.encode(name) + b":"


def text(fields: Fields, name: str) -> str | None:
    """A member that is a JSON string, decoded; None if it is absent or of another type."""
    raw = fields.get(name)
    if raw is None or bytes(raw).lstrip()[:1] != b'"':
        return None
    try:
        return msgspec.json.decode(raw, type=str)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def is_true(fields: Fields, name: str) -> bool:
    raw = fields.get(name)
    return raw is not None and bytes(raw).strip() == b"true"


def is_set(fields: Fields, name: str) -> bool:
    """Present and neither null nor false."""
    raw = fields.get(name)
    return raw is not None and bytes(raw).strip() not in (b"null", b"false")


def is_many(value: msgspec.Raw, *, of: tuple[bytes, ...]) -> bool:
    """Whether a value is a list of several things that begin with one of `of`. Decodes nothing: a
    list may have millions. What is too odd to be told counts as many."""
    view = memoryview(value)
    found = _FIRST_ITEM.match(view)
    if found is None or found[1] not in of:
        return False
    at = found.start(1)
    item = (_STRING if found[1] == b'"' else _FLAT_LIST).match(view, at)
    return item is None or _LAST_ITEM.match(view, item.end()) is None


_FIRST_ITEM = re.compile(rb"\s*+\[\s*+(.)", re.DOTALL)
_FLAT_LIST = re.compile(rb"\[[^\[\]\"]*+\]")
_LAST_ITEM = re.compile(rb"\s*+\]")


def is_null(value: msgspec.Raw) -> bool:
    return len(memoryview(value)) == 4 and bytes(value) == b"null"


def error_body(message: str, kind: str, code: str | int, param: str | None = None) -> bytes:
    """An error in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`."""
    return msgspec.json.encode(
        {"error": {"message": message, "type": kind, "param": param, "code": code}}
    )
