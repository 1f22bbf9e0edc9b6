"""The routes that run no model: health, version, models, tokens, profiling."""

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web

from sidecar.sim.answer import dump
from sidecar.sim.api_error import ApiError, InvalidBody
from sidecar.sim.core import Core
from sidecar.sim.messages_answer import error_of
from sidecar.sim.messages_request import chat_of_messages
from sidecar.sim.model_request import ModelRequest, read_json_object
from sidecar.sim.prompt import Api, Prompt, read_prompts, tokens_of_prompt

_Work = Callable[[dict[str, Any]], Any]
Reader = Callable[[Api, Mapping[str, Any]], ModelRequest]


class ServiceRoutes:
    """vLLM's small routes on one engine. `read` checks a request as if it were to run."""

    def __init__(self, core: Core, read: Reader) -> None:
        self._core = core
        self._read = read

    def routes(self) -> list[web.RouteDef]:
        """All of them; profiling only where it is configured, as in vLLM."""
        profiling = [
            web.post("/start_profile", self.start_profile),
            web.post("/stop_profile", self.stop_profile),
        ]
        return [
            web.get("/health", self.health),
            web.route("*", "/ping", self.health),
            web.get("/version", self.version),
            web.get("/v1/models", self.models),
            web.post("/tokenize", self.tokenize),
            web.post("/detokenize", self.detokenize),
            web.post("/v1/messages/count_tokens", self.count_tokens),
            web.post("/v1/completions/render", self.render_completion),
            web.post("/v1/chat/completions/render", self.render_chat),
            *(profiling if self._core.options.profiler else ()),
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
        return web.json_response({"object": "list", "data": self._core.models.cards()})

    async def tokenize(self, request: web.Request) -> web.Response:
        """POST /tokenize: here a token is a byte, so that /detokenize can turn it back."""
        return await self._answer(request, self._tokens)

    async def detokenize(self, request: web.Request) -> web.Response:
        """POST /detokenize: the inverse of /tokenize."""
        return await self._answer(request, self._text)

    async def count_tokens(self, request: web.Request) -> web.Response:
        """POST /v1/messages/count_tokens: as many as a message would be billed for."""
        return await self._answer(request, self._count, lambda error: dump(error_of(error)))

    async def render_completion(self, request: web.Request) -> web.Response:
        """POST /v1/completions/render: what each prompt would be run as."""
        return await self._answer(
            request, lambda body: self._render("completions", body, _id_of(request, "cmpl-", body))
        )

    async def render_chat(self, request: web.Request) -> web.Response:
        """POST /v1/chat/completions/render: what the chat would be run as."""
        return await self._answer(
            request, lambda body: self._render("chat", body, _id_of(request, "chatcmpl-", body))[0]
        )

    async def start_profile(self, request: web.Request) -> web.Response:
        """POST /start_profile."""
        return await self._profile(request, True)

    async def stop_profile(self, request: web.Request) -> web.Response:
        """POST /stop_profile."""
        return await self._profile(request, False)

    async def _profile(self, request: web.Request, is_on: bool) -> web.Response:
        self._core.keep(request, await request.read(), "single", 0)
        self._core.is_profiling = is_on
        return web.Response()

    async def _answer(
        self,
        request: web.Request,
        work: _Work,
        error_body: Callable[[ApiError], bytes] = ApiError.body,
    ) -> web.Response:
        raw = await request.read()
        self._core.keep(request, raw, "single", 0)
        try:
            body = read_json_object(request.headers.get("Content-Type", ""), raw)
            return web.json_response(work(body))
        except ApiError as error:
            shown = error.body() if error.is_validation else error_body(error)
            return web.Response(status=error.status, body=shown, content_type="application/json")

    def _tokens(self, body: dict[str, Any]) -> dict[str, Any]:
        self._core.models.find(body.get("model"))
        prompt = body.get("prompt")
        if prompt is None and "messages" in body:
            prompt = json.dumps(body["messages"], sort_keys=True)
        if not isinstance(prompt, str):
            raise InvalidBody("prompt", "string_type", "Input should be a valid string", prompt)
        tokens = list(prompt.encode("utf-8", "surrogatepass"))
        return {
            "count": len(tokens),
            "max_model_len": self._core.options.max_model_len,
            "tokens": tokens,
            "token_strs": None,
        }

    def _text(self, body: dict[str, Any]) -> dict[str, Any]:
        self._core.models.find(body.get("model"))
        tokens = body.get("tokens")
        if not isinstance(tokens, list) or not all(
            type(one) is int and 0 <= one < 256 for one in tokens
        ):
            problem = "Input should be a valid list of token ids"
            raise InvalidBody("tokens", "list_type", problem, tokens)
        return {"prompt": bytes(tokens).decode("utf-8", "replace")}

    def _count(self, body: dict[str, Any]) -> dict[str, Any]:
        chat = chat_of_messages(body, is_count=True)
        model = self._core.models.find(body.get("model"))
        try:
            (prompt,) = read_prompts("messages", chat, model.adapter)
        except ValueError as error:
            raise ApiError(400, str(error)) from None
        count = prompt.tokens
        return {"input_tokens": count, "context_management": {"original_input_tokens": count}}

    def _render(self, api: Api, body: dict[str, Any], request_id: str) -> list[dict[str, Any]]:
        if body.get("use_beam_search"):
            raise ApiError(400, "Beam search is not supported by the render endpoint")
        asked = self._read(api, body)
        is_one = len(asked.prompts) == 1
        return [
            _rendered(asked, prompt, request_id if is_one else f"{request_id}-{index}")
            for index, prompt in enumerate(asked.prompts)
        ]


def _id_of(request: web.Request, prefix: str, body: Mapping[str, Any]) -> str:
    return prefix + (request.headers.get("X-Request-Id") or str(body.get("request_id") or "render"))


def _rendered(asked: ModelRequest, prompt: Prompt, request_id: str) -> dict[str, Any]:
    sampling = asked.sampling
    return {
        "request_id": request_id,
        "token_ids": [token.id for token in tokens_of_prompt(prompt)],
        "sampling_params": {
            "n": sampling.n,
            "max_tokens": sampling.max_tokens,
            "min_tokens": sampling.min_tokens,
            "stop": list(sampling.stop),
            "ignore_eos": sampling.ignore_eos,
            "temperature": asked.body.get("temperature"),
            "seed": asked.body.get("seed"),
        },
        "model": asked.body.get("model"),
        "stream": asked.stream,
        "kv_transfer_params": asked.body.get("kv_transfer_params"),
        "cache_salt": asked.body.get("cache_salt"),
        "priority": asked.body.get("priority") or 0,
    }
