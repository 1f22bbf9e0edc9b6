"""What stands before every route: the API key, and the count of what arrived."""

from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.typedefs import Middleware

from sidecar.sim.core import Core

GUARDED = ("/v1", "/v2", "/inference", "/cohere")
"""What vLLM asks a key for; /health, /ping, /version, /tokenize and the rest are open."""
PROBE_AGENT = "pd-sidecar-probe"
_PROBED = ("/version", "/v1/models")
_NOT_COUNTED = ("/sim", "/health", "/ping", "/metrics")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def guard_of(core: Core) -> Middleware:
    """The middleware of one engine."""
    key = core.options.api_key

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        if _is_counted(request):
            core.counters.requests_received += 1
        if key and request.path.startswith(GUARDED) and not _has_key(request, key):
            return web.json_response({"error": "Unauthorized"}, status=401)
        return await handler(request)

    return guard


def _is_counted(request: web.Request) -> bool:
    path = request.path
    if path.startswith(_NOT_COUNTED):
        return False
    return path not in _PROBED or PROBE_AGENT not in request.headers.get("User-Agent", "")


def _has_key(request: web.Request, key: str) -> bool:
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    return scheme.lower() == "bearer" and given == key
