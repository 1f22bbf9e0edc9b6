"""Bodies that no honest client sends, by name."""

from tests.requests.scripted_engine import MODEL

DEPTH = 10_000
DIGITS = 5_000

_MODEL = b'"model": "' + MODEL.encode() + b'"'


def asking(more: bytes, prompt: bytes = b'"Hello"') -> bytes:
    """A good request with these members more."""
    return b"{" + _MODEL + b', "prompt": ' + prompt + b", " + more + b"}"


GOOD = asking(b'"user": "u"')

NO_JSON = {
    "white space": b" \r\n\t ",
    "a word": b"nonsense",
    "an array": b"[" + GOOD + b"]",
    "a string": b'"' + MODEL.encode() + b'"',
    "a number": b"1",
    "true": b"true",
    "null": b"null",
    "a half": GOOD[:-1],
    "two values": GOOD + GOOD,
    "two lines": GOOD + b"\n" + GOOD,
    "a comma after": GOOD + b",",
    "garbage after": GOOD + b" x",
    "a NUL after": GOOD + b"\0",
    "a NUL before": b"\0" + GOOD,
    "a NUL in a string": asking(b'"user": "a\0b"'),
    "a line break in a string": asking(b'"user": "a\nb"'),
    "a comment": asking(b'"user": /* u */ "u"'),
    "a trailing comma": b"{" + _MODEL + b",}",
    "single quotes": GOOD.replace(b'"', b"'"),
    "a bare key": b"{model: 1}",
    "a key that is no text": b"{1: 1}",
    "a byte order mark": b"\xef\xbb\xbf" + GOOD,
    "UTF-16": GOOD.decode().encode("utf-16"),
    "UTF-16 without a mark": GOOD.decode().encode("utf-16-le"),
    "UTF-32": GOOD.decode().encode("utf-32"),
    "latin-1": asking(b'"user": "\xe4"'),
    "invalid UTF-8 in a key": asking(b'"us\xffer": 1'),
    "invalid UTF-8 in a value": asking(b'"user": "\xc3\x28"'),
    "invalid UTF-8 deep inside": asking(b'"metadata": {"a": [1, {"b": "\xf0\x28\x8c\x28"}]}'),
    "invalid UTF-8 in a deep key": asking(b'"metadata": {"a": [1, {"\x80": 1}]}'),
    "invalid UTF-8 in the prompt": asking(b'"user": "u"', b'"\xed"'),
    "an overlong slash": asking(b'"user": "\xc0\xaf"'),
    "an overlong NUL": asking(b'"user": "\xc0\x80"'),
    "an overlong euro": asking(b'"user": "\xf0\x82\x82\xac"'),
    "a lone surrogate in bytes": asking(b'"user": "\xed\xa0\x80"'),
    "a pair of surrogates in bytes": asking(b'"user": "\xed\xa0\xbd\xed\xb8\x80"'),
    "beyond Unicode": asking(b'"user": "\xf4\x90\x80\x80"'),
    "a character cut off": asking(b'"user": "\xe2\x82"'),
    "NaN": asking(b'"temperature": NaN'),
    "Infinity": asking(b'"temperature": Infinity'),
    "minus Infinity": asking(b'"temperature": -Infinity'),
    "NaN deep inside": asking(b'"metadata": {"a": [NaN]}'),
    "a hexadecimal number": asking(b'"seed": 0x10'),
    "a leading zero": asking(b'"seed": 01'),
    "a leading plus": asking(b'"seed": +1'),
    "a bare point": asking(b'"temperature": .5'),
    "deep arrays in a known field": asking(b'"user": "u"', b"[" * DEPTH + b"]" * DEPTH),
    "deep arrays in an unknown field": asking(b'"xyz": ' + b"[" * DEPTH + b"]" * DEPTH),
    "deep objects": asking(b'"xyz": ' + b'{"a":' * DEPTH + b"1" + b"}" * DEPTH),
    "deep and never closed": asking(b'"xyz": ' + b"[" * DEPTH),
}
"""Each is no JSON object in UTF-8, or deeper than anyone may ask a parser to go."""

TOO_LONG = {
    "an integer of 5,000 digits": b'"seed": ' + b"9" * DIGITS,
    "a negative one": b'"seed": -' + b"9" * DIGITS,
    "a fraction of 5,000 digits": b'"temperature": 0.' + b"1" * DIGITS,
    "an exponent of many digits": b'"temperature": 1e' + b"9" * DIGITS,
    "5,000 digits as max_tokens": b'"max_tokens": ' + b"9" * DIGITS,
    "5,000 digits in a field that nobody knows": b'"xyz": ' + b"9" * DIGITS,
}
"""Numbers that Python refuses to read, so every engine does."""

ABSURD = {
    "an exponent beyond any double": b'"temperature": 1e999',
    "an exponent deep inside": b'"metadata": {"a": [-1e999]}',
    "an integer of 5,000 digits deep inside": b'"metadata": {"a": [' + b"9" * DIGITS + b"]}",
    "2 to the 64": b'"seed": 18446744073709551616',
    "minus zero": b'"temperature": -0.0',
    "a text for a number": b'"temperature": "0.5"',
}
"""Numbers that are JSON, and that an engine may refuse."""

IN_LEGS = {
    "no whole number": b'"max_tokens": 1.5',
    "an exponent": b'"max_tokens": 1e999',
    "more than any context": b'"max_tokens": 4294967296',
    "negative": b'"max_tokens": -1',
    "a text": b'"max_tokens": "7"',
}
"""The same in a field that the prefill leg does not have as the client wrote it."""
