"""Forms of the audio paths: the few fields a router must know of, read as the engines read them.

The parser is python-multipart, which FastAPI drives in the engines, by the same callbacks and with
the same rules for names and charsets (starlette/formparsers.py). An engine may have another version
of it, so what versions may not agree about is refused, not guessed: a boundary with anything behind
it, parameters that repeat or have a `*`, a form without an end. A file's bytes are passed over and
never kept.
"""

import json
import re
from urllib.parse import unquote_plus

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, QuerystringParser, parse_options_header

from sidecar.wire.forbidden import FORBIDDEN, hidden_in_xargs
from sidecar.wire.openai import BodyError

MAX_PARTS = 128
"""of one form: vLLM's has 27 fields"""
MAX_KEPT_BYTES = 64 << 10
"""of all fields that are looked into together"""
MAX_URLENCODED_BYTES = 64 << 10
"""It can hold no file, so it is small; the parser takes 0.1 us for each `&`."""

_MODEL, _XARGS = "model", "vllm_xargs"
_LOOKED_INTO = frozenset((_MODEL, _XARGS, *FORBIDDEN))
_CHARSETS = {
    b"utf-8": "utf-8",
    b"utf8": "utf-8",
    b"us-ascii": "ascii",
    b"ascii": "ascii",
    b"iso-8859-1": "latin-1",
    b"latin-1": "latin-1",
}
"""in which the ASCII bytes of a name are its ASCII characters"""

_TOKEN = r"[!#$%&'+.^_`|~0-9A-Za-z-]+"
_CONTENT_TYPE = re.compile(
    rf"[ \t]*{_TOKEN}/{_TOKEN}"
    rf'((?:[ \t]*;[ \t]*{_TOKEN}=(?:[!#-+\--:<-\[\]-~]+|"[ !#-+\--\[\]-~]*"))*)'
    r"[ \t]*;?[ \t]*"
)
"""Without commas: two headers of that name come as one, and an engine might see the first."""
_DISPOSITION = re.compile(
    r"form-data"
    r'((?:[ \t]*;[ \t]*[^\s;="]+=(?:[^\x00-\x20";\x7f]*|"(?:[^\x00-\x1f"\\\x7f]|\\[^\r\n])*"))+)'
    r"[ \t]*;?[ \t]*",
    re.IGNORECASE,
)
_PARAMETER = re.compile(r';[ \t]*([^\s;="]+)=("(?:[^"\\]|\\.)*"|[^";\s]*)')


def model_of(content_type: str, body: bytes) -> str:
    """The model that a form names; empty: none. Of a field that repeats the last counts, as FastAPI
    has it.

    Raises BodyError for what is no form, for what engines might read otherwise, and for fields that
    only a router may set, in any `vllm_xargs` too: it is JSON, and becomes sampling parameters.
    """
    model = ""
    for name, value in _fields(content_type, body):
        if name == _MODEL:
            model = value
        elif name == _XARGS:
            _check_xargs(value)
        else:
            raise BodyError(f"a form must not have {name}: only the router may set it")
    return model


def _check_xargs(text: str) -> None:
    """With the engines' own parser, which takes more than JSON."""
    if not text:  # as if it were not there
        return
    try:
        xargs = json.loads(text)
    except (ValueError, RecursionError):
        raise BodyError(f"the form's {_XARGS} is not valid JSON") from None
    for name in FORBIDDEN:
        if isinstance(xargs, dict) and name in xargs:
            raise hidden_in_xargs(name)


def _fields(content_type: str, body: bytes) -> list[tuple[str, str]]:
    """Those that are looked into, in order."""
    match = _CONTENT_TYPE.fullmatch(content_type)
    if match is not None and not _repeats(_parameters(match[1])):
        kind, parameters = parse_options_header(content_type)
        try:
            if kind == b"multipart/form-data":
                return _Multipart(parameters).read(body)
            if kind == b"application/x-www-form-urlencoded":
                return _Urlencoded().read(body)
        except FormParserError as error:
            raise BodyError(f"the form cannot be read: {error}") from None
    raise BodyError("this path takes a form: multipart/form-data with a boundary")


def _parameters(text: str) -> list[tuple[str, str]]:
    """Of a header that has the form of its pattern."""
    return [(name.lower(), value) for name, value in _PARAMETER.findall(text)]


def _repeats(parameters: list[tuple[str, str]]) -> bool:
    return len({name for name, _ in parameters}) < len(parameters)


class _Multipart:
    """One body of `multipart/form-data`. The parser hands out names and values in pieces."""

    def __init__(self, parameters: dict[bytes, bytes]) -> None:
        self._boundary = parameters.get(b"boundary", b"")
        if not self._boundary:
            raise BodyError("the content-type names no boundary")
        self._charset = _charset_of(parameters)
        self._fields: list[tuple[str, str]] = []
        self._kept_bytes = 0
        # Of the part at hand.
        self._header_name = self._header_value = b""
        self._disposition: bytes | None = None
        self._name = ""
        """empty: not looked into"""
        self._value = b""

    def read(self, body: bytes) -> list[tuple[str, str]]:
        self._check_delimiters(body)
        parser = MultipartParser(
            self._boundary,
            {
                "on_part_begin": self._on_begin,
                "on_header_field": self._on_header_name,
                "on_header_value": self._on_header_value,
                "on_header_end": self._on_header_end,
                "on_headers_finished": self._on_headers,
                "on_part_data": self._on_data,
                "on_part_end": self._on_end,
            },
        )
        parser.logger.disabled = True  # a client's fault is no line of ours
        parser.write(body)
        return self._fields

    def _check_delimiters(self, body: bytes) -> None:
        """The form begins with one, each is followed by the end of its line, the last one ends it.

        Before the parser, which goes byte by byte through what it is not sure about: 25 MB of
        spaces behind a boundary take it seconds.
        """
        delimiter = b"\r\n--" + self._boundary
        at = -2 if body.startswith(delimiter[2:]) else 0
        if at == 0 and not body.startswith(delimiter):
            raise BodyError("the form does not begin with its boundary")
        for _ in range(MAX_PARTS + 1):
            after = at + len(delimiter)
            at = body.find(delimiter, after)
            end = body[after : after + 2]
            if end == b"--" and at < 0:
                return
            if at < 0:
                raise BodyError("the form has no end")
            if end != b"\r\n":
                raise BodyError("the form has its boundary where no part begins")
        raise BodyError(f"the form has more than {MAX_PARTS} parts")

    def _on_begin(self) -> None:
        self._disposition = None

    def _on_header_name(self, data: bytes, start: int, end: int) -> None:
        self._header_name += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]

    def _on_header_end(self) -> None:
        name, value = self._header_name.lower(), self._header_value
        self._header_name = self._header_value = b""
        if name != b"content-disposition":
            return
        if self._disposition is not None:
            raise BodyError("a part of the form has two Content-Disposition headers")
        self._disposition = value

    def _on_headers(self) -> None:
        name, is_file = self._read_disposition(self._disposition or b"")
        if name in _LOOKED_INTO and is_file:
            raise BodyError(f"{name} of a form must be no file")
        self._name = name if name in _LOOKED_INTO else ""
        self._value = b""

    def _read_disposition(self, header: bytes) -> tuple[str, bool]:
        """The name, and whether it is a file: as the parser has it, if its parameters are those of
        the header's grammar, which ends a quoted text elsewhere after some backslashes."""
        match = _DISPOSITION.fullmatch(header.decode("latin-1"))
        parameters = _parameters(match[1]) if match else []
        ours = dict(parameters)
        _, options = parse_options_header(header)
        is_plain = (
            "\\" not in ours.get("name", "\\")
            and not _repeats(parameters)
            and not any(name.startswith("name*") for name in ours)
            and {name.encode("latin-1") for name in ours if "*" not in name} == options.keys()
        )
        if not is_plain:
            raise BodyError("a part of the form has no plain name in its Content-Disposition")
        return self._text(options[b"name"]), b"filename" in options

    def _on_data(self, data: bytes, start: int, end: int) -> None:
        if not self._name:
            return
        self._kept_bytes += end - start
        if self._kept_bytes > MAX_KEPT_BYTES:
            raise BodyError(f"{self._name} of a form may have {MAX_KEPT_BYTES} bytes")
        self._value += data[start:end]

    def _on_end(self) -> None:
        if self._name:
            self._fields.append((self._name, self._text(self._value)))

    def _text(self, data: bytes) -> str:
        try:
            return data.decode(self._charset)
        except UnicodeDecodeError:
            return data.decode("latin-1")


def _charset_of(parameters: dict[bytes, bytes]) -> str:
    charset = _CHARSETS.get(parameters.get(b"charset", b"utf-8").lower())
    if charset is None:
        raise BodyError("a form must be in UTF-8")
    return charset


class _Urlencoded:
    """One body of `application/x-www-form-urlencoded`."""

    def __init__(self) -> None:
        self._fields: list[tuple[str, str]] = []
        self._name = self._value = b""

    def read(self, body: bytes) -> list[tuple[str, str]]:
        if len(body) > MAX_URLENCODED_BYTES:
            most = f"{MAX_URLENCODED_BYTES} bytes"
            raise BodyError(f"an urlencoded form may have {most}: send multipart/form-data")
        if b";" in body:  # it parts fields, to older parsers
            raise BodyError("an urlencoded form must have its `;` encoded")
        parser = QuerystringParser(
            {
                "on_field_start": self._on_start,
                "on_field_name": self._on_name,
                "on_field_data": self._on_data,
                "on_field_end": self._on_end,
            }
        )
        parser.logger.disabled = True
        parser.write(body)
        parser.finalize()
        return self._fields

    def _on_start(self) -> None:
        self._name = self._value = b""

    def _on_name(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def _on_data(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _on_end(self) -> None:
        name = unquote_plus(self._name.decode("latin-1"))
        if name in _LOOKED_INTO:
            self._fields.append((name, unquote_plus(self._value.decode("latin-1"))))
