"""The routes that run no model: health, version, models, tokenize."""

import asyncio
import json
import time
from collections.abc import Callable

from aiohttp import web

from sidecar.sim.api_error import ApiError
from sidecar.sim.core import Core
from sidecar.sim.model_request import MAX_MODEL_LEN, read_json_object

_Work = Callable[[dict[str, object]], dict[str, object]]


class ServiceRoutes:
    """vLLM's small routes on one engine."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._created = int(time.time())

    def routes(self) -> list[web.RouteDef]:
        """All of them."""
        return [
            web.get("/health", self.health),
            web.get("/version", self.version),
            web.get("/v1/models", self.models),
            web.post("/tokenize", self.tokenize),
            web.post("/detokenize", self.detokenize),
        ]

    async def health(self, request: web.Request) -> web.Response:
        """GET /health: 200 and no body; 503 once the engine core is dead."""
        health = self._core.health
        if health.delay_s:
            await asyncio.sleep(health.delay_s)
        if health.refuse and request.transport is not None:
            request.transport.abort()
        return web.Response(status=503 if self._core.is_dead else health.status)

    async def version(self, _request: web.Request) -> web.Response:
        """GET /version."""
        return web.json_response({"version": self._core.options.version})

    async def models(self, _request: web.Request) -> web.Response:
        """GET /v1/models, OpenAI's list."""
        model = {
            "id": self._core.options.model,
            "object": "model",
            "created": self._created,
            "owned_by": "vllm",
            "root": self._core.options.model,
            "parent": None,
            "max_model_len": MAX_MODEL_LEN,
        }
        return web.json_response({"object": "list", "data": [model]})

    async def tokenize(self, request: web.Request) -> web.Response:
        """POST /tokenize: here a token is a byte, so that /detokenize can turn it back."""
        return await self._answer(request, self._tokens)

    async def detokenize(self, request: web.Request) -> web.Response:
        """POST /detokenize: the inverse of /tokenize."""
        return await self._answer(request, self._text)

    async def _answer(self, request: web.Request, work: _Work) -> web.Response:
        try:
            body = read_json_object(request.headers.get("Content-Type", ""), await request.read())
            return web.json_response(work(body))
        except ApiError as error:
            return web.Response(
                status=error.status, body=error.body(), content_type="application/json"
            )

    def _tokens(self, body: dict[str, object]) -> dict[str, object]:
        prompt = body.get("prompt")
        if prompt is None and "messages" in body:
            prompt = json.dumps(body["messages"], sort_keys=True)
        if not isinstance(prompt, str):
            raise ApiError(400, "1 validation error: prompt: Input should be a valid string")
        tokens = list(prompt.encode("utf-8", "surrogatepass"))
        return {
            "count": len(tokens),
            "max_model_len": MAX_MODEL_LEN,
            "tokens": tokens,
            "token_strs": None,
        }

    def _text(self, body: dict[str, object]) -> dict[str, object]:
        tokens = body.get("tokens")
        if not isinstance(tokens, list) or not all(
            type(one) is int and 0 <= one < 256 for one in tokens
        ):
            raise ApiError(400, "1 validation error: tokens: Input should be a list of token ids")
        return {"prompt": bytes(tokens).decode("utf-8", "replace")}
