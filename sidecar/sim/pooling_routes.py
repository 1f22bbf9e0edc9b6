"""The routes of pooling models: embeddings, pooling, classification, scores and ranks."""

import time
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from os import urandom
from typing import Any, NamedTuple

from aiohttp import web

from sidecar.sim.answer import dump
from sidecar.sim.api_error import ApiError
from sidecar.sim.core import Core
from sidecar.sim.fields import TEXT, check_types
from sidecar.sim.intake import Intake
from sidecar.sim.models import ServedModel
from sidecar.sim.pooling import Pooler, classify, embed, embeddings, pooling, rerank, score

_Work = Callable[[Mapping[str, Any], Pooler], dict[str, Any]]


class _Path(NamedTuple):
    path: str
    prefix: str
    work: _Work
    is_dated: bool = True
    """Its answer has `created`."""


_PATHS = (
    _Path("/v1/embeddings", "embd-", embeddings),
    _Path("/v2/embed", "embd-", embed, False),
    _Path("/pooling", "pool-", pooling),
    _Path("/classify", "classify-", classify),
    _Path("/score", "score-", score),
    _Path("/v1/score", "score-", score),
    _Path("/rerank", "score-", rerank, False),
    _Path("/v1/rerank", "score-", rerank, False),
    _Path("/v2/rerank", "score-", rerank, False),
)


class PoolingRoutes:
    """One engine's. A real engine serves text or pools; this one does both."""

    def __init__(self, core: Core, intake: Intake) -> None:
        self._core = core
        self._intake = intake

    def routes(self) -> list[web.RouteDef]:
        """All of them."""
        return [web.post(one.path, partial(self._serve, one)) for one in _PATHS]

    async def _serve(self, path: _Path, request: web.Request) -> web.StreamResponse:
        return await self._intake.serve(request, partial(self._run, path))

    async def _run(self, path: _Path, request: web.Request) -> web.StreamResponse:
        admitted = await self._intake.admit(request, self._read)
        if admitted.early is not None:
            return admitted.early
        core, (body, model) = self._core, admitted.asked
        salt = b""
        if core.options.garbles_plain_requests:
            core.counters.errors["garbled_plain"] += 1
            salt = urandom(16)
        found = path.work(body, Pooler(model, salt))
        own = request.headers.get("X-Request-Id") or body.get("request_id") or uuid.uuid4().hex
        head: dict[str, Any] = {"id": f"{path.prefix}{own}", "model": model.name}
        if path.is_dated:
            head["created"] = int(time.time())
        return web.Response(body=dump({**head, **found}), content_type="application/json")

    def _read(self, body: Mapping[str, Any]) -> tuple[Mapping[str, Any], ServedModel]:
        if body.get("kv_transfer_params"):
            raise ApiError(400, "sim: kv_transfer_params at a route without a transfer")
        check_types(body, {"model": TEXT, "request_id": TEXT, "user": TEXT})
        return body, self._core.models.find(body.get("model"))
