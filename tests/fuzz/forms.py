"""Forms of the audio paths, against the parser of the engines: Starlette, as FastAPI drives it."""

import json
from collections.abc import AsyncIterator, Coroutine
from typing import Any

from starlette.datastructures import FormData, Headers
from starlette.formparsers import FormParser, MultiPartException, MultiPartParser
from starlette.requests import Request

from sidecar.wire.forbidden import FORBIDDEN
from sidecar.wire.form import model_of
from sidecar.wire.openai import BodyError

Items = list[tuple[str, str | None]]
"""The fields of a form, in order; None: a file."""


def starlette_reads(content_type: str, body: bytes) -> Items | None:
    """None: it refuses the form. What is no form has no fields."""

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def read() -> FormData:
        headers = [(b"content-type", content_type.encode("latin-1"))]
        return await Request({"type": "http", "headers": headers}, receive).form()

    return _run(_items(read()))


def starlette_reads_in_pieces(content_type: str, body: bytes, size: int) -> Items | None:
    """The same of a form that comes in pieces of that many bytes."""

    async def pieces() -> AsyncIterator[bytes]:
        for at in range(0, len(body), size):
            yield body[at : at + size]

    parser = FormParser if "urlencoded" in content_type.lower() else MultiPartParser
    return _run(_items(parser(Headers({"content-type": content_type}), pieces()).parse()))


async def _items(reading: Coroutine[Any, Any, FormData]) -> Items | None:
    try:
        form = await reading
    except (MultiPartException, ValueError):  # FastAPI's 400
        return None
    await form.close()
    return [(k, v if isinstance(v, str) else None) for k, v in form.multi_items()]


def _run(reading: Coroutine[Any, Any, Items | None]) -> Items | None:
    """Nothing in it waits: the body is there, and small files stay in memory."""
    try:
        reading.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("the parser waits for something")


def check_form(data: bytes) -> None:
    """A content-type, a line break, a body: what we let pass, an engine reads just so."""
    head, _, body = data.partition(b"\n")
    content_type = head.decode("latin-1")
    try:
        model = model_of(content_type, body)
    except BodyError as refused:
        _is_readable(str(refused))
        return
    agrees(model, starlette_reads(content_type, body))
    agrees(model, starlette_reads_in_pieces(content_type, body, 7))


def _is_readable(reason: str) -> None:
    assert 0 < len(reason) < 400, "not a reason for a client to read"


def agrees(model: str, seen: Items | None) -> None:
    """The form that an engine sees has this model, and nothing that a client must not set."""
    assert seen is not None, "let pass, though an engine cannot read it"
    models = [value for name, value in seen if name == "model"]
    assert model == (models[-1] if models else ""), "another model than the engine sees"
    for name, value in seen:
        assert name not in FORBIDDEN, f"{name} of the client reaches an engine"
        if name == "vllm_xargs":
            assert value is not None, "a file, and not looked into"
            xargs = json.loads(value) if value else None
            assert not isinstance(xargs, dict) or not set(FORBIDDEN) & xargs.keys()
