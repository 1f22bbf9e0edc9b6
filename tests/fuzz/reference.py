"""How an engine reads a JSON body: Python's own parser, which vLLM uses."""

import json
from typing import Any


def read(data: bytes) -> Any:
    """The value. Raises ValueError for what Python refuses, and RecursionError.

    A long integer is kept as its text: Python refuses to count above 4300 digits, and what an
    engine makes of such a number is the engine's affair.
    """
    return json.loads(data, parse_int=_whole)


def _whole(text: str) -> object:
    return int(text) if len(text) < 4000 else text


def read_strictly(data: bytes) -> Any:
    """The same, but refuses all that Python takes beyond RFC 8259, which is what we refuse too:
    `NaN` and `Infinity`, a byte order mark, UTF-16 and UTF-32, lone surrogates."""
    text = data.decode("utf-8")
    if text.startswith("\ufeff"):
        raise ValueError("a byte order mark")
    # Pairs, because of a repeated key a dict shows the last value alone.
    pairs = json.loads(text, parse_constant=_refuse, parse_int=_whole, object_pairs_hook=list)
    json.dumps(pairs, ensure_ascii=False).encode()  # UnicodeEncodeError: a lone surrogate
    return read(data)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
