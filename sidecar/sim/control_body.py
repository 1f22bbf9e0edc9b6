"""The JSON object of a control request, checked."""

import json
from collections.abc import Mapping
from typing import Any

from aiohttp import web

LONGEST_S = 86400


async def read_object(request: web.Request) -> dict[str, Any]:
    """The JSON object of a request; none is {}. Raises HTTPBadRequest."""
    try:
        given = json.loads(await request.read() or b"{}")
    except ValueError as error:
        raise web.HTTPBadRequest(text=f"not JSON: {error}") from None
    if not isinstance(given, dict):
        raise web.HTTPBadRequest(text="not a JSON object")
    return given


def check_values(given: Mapping[str, Any], types: Mapping[str, type], required: str | None) -> None:
    """Check keys and values; raises HTTPBadRequest naming the one at fault.

    A number may not be negative, a whole one passes for a float, and seconds end at a day.
    """
    if required is not None and required not in given:
        raise web.HTTPBadRequest(text=f"{required} is missing")
    for key, value in given.items():
        wanted = types.get(key)
        is_right = type(value) is wanted or (wanted is float and type(value) is int)
        if is_right and wanted in (int, float):
            is_right = value >= 0 and (value <= LONGEST_S or not key.endswith("_s"))
        if not is_right:
            raise web.HTTPBadRequest(text=f"{key}: unknown, or a wrong value")


async def read_control(
    request: web.Request, types: Mapping[str, type], required: str | None = None
) -> dict[str, Any]:
    """The object of a control request, its values of the types named; raises HTTPBadRequest."""
    given = await read_object(request)
    check_values(given, types, required)
    return given
