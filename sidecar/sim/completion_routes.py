"""The routes that write text: completions, chats, responses and messages, one way for all."""

import time
import uuid
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from sidecar.sim.answer import Answer, dump
from sidecar.sim.chat_answer import ChatAnswer
from sidecar.sim.completion_answer import CompletionAnswer
from sidecar.sim.connector import Connector
from sidecar.sim.core import Core
from sidecar.sim.generation import Generation
from sidecar.sim.intake import Admitted, Intake
from sidecar.sim.messages_answer import MessagesAnswer, error_of
from sidecar.sim.messages_request import chat_of_messages
from sidecar.sim.model_request import ModelRequest, read_model_request
from sidecar.sim.options import SimOptions
from sidecar.sim.prompt import Api
from sidecar.sim.rejection import Rejection
from sidecar.sim.responses_answer import ResponsesAnswer
from sidecar.sim.responses_request import chat_of_responses

_NOT_IN_BATCH = ("tools", "tool_choice", "stream", "stream_options")


class CompletionRoutes:
    """The text-writing routes of one engine."""

    def __init__(self, core: Core, intake: Intake, connector: Connector) -> None:
        self._core = core
        self._intake = intake
        self._connector = connector

    def routes(self) -> list[web.RouteDef]:
        """All of them."""
        return [
            web.post("/v1/completions", self.completions),
            web.post("/v1/chat/completions", self.chat),
            web.post("/v1/chat/completions/batch", self.batch),
            web.post("/v1/responses", self.responses),
            web.post("/v1/messages", self.messages),
        ]

    async def completions(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/completions."""
        return await self._intake.serve(request, lambda r: self._run(r, "completions"))

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/chat/completions."""
        return await self._intake.serve(request, lambda r: self._run(r, "chat"))

    async def batch(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/chat/completions/batch: one choice for each conversation."""
        return await self._intake.serve(request, lambda r: self._run(r, "batch"))

    async def responses(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/responses."""
        return await self._intake.serve(request, lambda r: self._run(r, "responses"))

    async def messages(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/messages."""
        return await self._intake.serve(
            request, lambda r: self._run(r, "messages"), lambda error: dump(error_of(error))
        )

    async def _run(self, request: web.Request, api: Api) -> web.StreamResponse:
        rejection = Rejection(self._connector, api)
        with rejection.watch():
            admitted = await self._intake.admit(
                request, lambda body: self.read(api, rejection.see(body))
            )
            if admitted.early is not None:
                rejection.tell()
                return admitted.early
            run = self._generation(request, api, admitted)
            if not admitted.asked.stream:
                return await run.answer_whole(request)
        return await run.answer_streamed(request)

    def _generation(
        self, request: web.Request, api: Api, admitted: Admitted[ModelRequest]
    ) -> Generation:
        asked = admitted.asked
        request_id = _request_id(request, api, admitted.body)
        answer = _answer_to(asked, admitted.body, request_id, self._core.options)
        sides = (self._core, self._connector)
        return Generation(*sides, asked, admitted.rank, request_id, answer, admitted.fault)

    def read(self, api: Api, body: Mapping[str, Any]) -> ModelRequest:
        """The checked request of a client's body; raises ApiError."""
        models, longest = self._core.models, self._core.options.max_model_len
        chat = body
        match api:
            case "responses":
                chat = chat_of_responses(body, models)
            case "messages":
                chat = chat_of_messages(body)
            case "batch":
                chat = {key: body[key] for key in body if key not in _NOT_IN_BATCH}
        return read_model_request(api, chat, models, longest)


def _request_id(request: web.Request, api: Api, body: Mapping[str, Any]) -> str:
    """Responses takes the body's, the others the header's (protocol b)."""
    if api == "responses":
        return str(body.get("request_id") or f"resp_{uuid.uuid4().hex}")
    own = body.get("request_id") if api != "messages" else None
    return request.headers.get("X-Request-Id") or own or uuid.uuid4().hex


def _answer_to(
    asked: ModelRequest, body: Mapping[str, Any], request_id: str, engine: SimOptions
) -> Answer:
    created = int(time.time())
    match asked.api:
        case "completions":
            return CompletionAnswer(asked, request_id, created, engine)
        case "responses":
            return ResponsesAnswer(asked, body, request_id, created, engine)
        case "messages":
            return MessagesAnswer(asked, request_id)
        case _:
            return ChatAnswer(asked, request_id, created, engine)
