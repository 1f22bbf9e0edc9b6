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

_SHOWN = {
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "temperature": 1.0,
    "top_p": 1.0,
    "min_p": 0.0,
}
"""What a rendered request has of its sampling in any case"""
_LEFT_OUT = ("n", "max_tokens", "min_tokens", "ignore_eos", "seed")
"""...and what only where the client gave it"""

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
        return _json({"version": self._core.options.version})

    async def models(self, _request: web.Request) -> web.Response:
        """GET /v1/models, OpenAI's list."""
        return _json({"object": "list", "data": self._core.models.cards()})

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
            return _json(work(body))
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


def _json(value: Any) -> web.Response:
    """Without the charset that aiohttp would name."""
    return web.Response(body=dump(value), content_type="application/json")


def _id_of(request: web.Request, prefix: str, body: Mapping[str, Any]) -> str:
    return prefix + (request.headers.get("X-Request-Id") or str(body.get("request_id") or "render"))


def _rendered(asked: ModelRequest, prompt: Prompt, request_id: str) -> dict[str, Any]:
    sampling, body = asked.sampling, asked.body
    given = {key: body[key] for key in _LEFT_OUT if body.get(key) is not None}
    return {
        "request_id": request_id,
        "token_ids": [token.id for token in tokens_of_prompt(prompt)],
        "token_offsets": None,
        "features": None,
        "content_parts": None,
        "sampling_params": {
            **{key: _or(body.get(key), default) for key, default in _SHOWN.items()},
            "stop": list(sampling.stop),
            "stop_token_ids": sorted(sampling.stop_token_ids),
            "output_kind": 2,
            "skip_clone": True,
            "bad_words": body.get("bad_words") or [],
            "skip_reading_prefix_cache": sampling.prompt_logprobs is not None,
            **given,
        },
        "model": body.get("model"),
        "reasoning_ended": None,
        "reasoning_parser_kwargs": None,
        "return_token_ids": body.get("return_token_ids"),
        "output_mode": "tokens",
        "stream": asked.stream,
        "stream_options": body.get("stream_options"),
        "cache_salt": body.get("cache_salt"),
        "priority": body.get("priority") or 0,
        "kv_transfer_params": body.get("kv_transfer_params"),
        "ec_transfer_params": None,
    }


def _or(value: Any, default: float) -> Any:
    return default if value is None else value
