"""A form as aiohttp's own reader sees it: texts, and files as their bytes."""

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

import aiohttp
from aiohttp import web
from aiohttp.base_protocol import BaseProtocol

from sidecar.sim.api_error import ApiError

MOST_TEXT_BYTES = 1 << 20  # of one field; Starlette's limit


async def read_form(request: web.Request, raw: bytes) -> Mapping[str, Any]:
    """The fields by name, the last of each; none, if the body is no form. Raises ApiError 400."""
    if request.content_type == "application/x-www-form-urlencoded":
        return dict(parse_qsl(raw.decode("latin-1"), keep_blank_values=True))
    if request.content_type != "multipart/form-data":
        return {}
    loop = asyncio.get_running_loop()
    # With room for all of it: there is no connection that could be told to wait.
    stream = aiohttp.StreamReader(BaseProtocol(loop), limit=len(raw) + 1, loop=loop)
    stream.feed_data(raw)
    stream.feed_eof()
    try:
        return await _read_parts(aiohttp.MultipartReader(request.headers, stream))
    except ValueError as error:
        raise ApiError(400, f"There was an error parsing the body: {error}") from None


async def _read_parts(reader: aiohttp.MultipartReader) -> Mapping[str, Any]:
    fields: dict[str, Any] = {}
    while (part := await reader.next()) is not None:
        if not isinstance(part, aiohttp.BodyPartReader) or part.name is None:
            raise ValueError("a part without a name, or of parts")
        value = bytes(await part.read())
        if part.filename is not None:
            fields[part.name] = value
        elif len(value) > MOST_TEXT_BYTES:
            raise ValueError("Part exceeded maximum size of 1024KB.")
        else:
            fields[part.name] = value.decode("utf-8", "replace")
    return fields
