"""The bytes of an answer: whole JSON and server-sent events, as vLLM 0.33 shapes them.

An event's constant parts are serialised once a request; each token is then a concatenation.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sidecar.sim.model import Api

DONE = b"data: [DONE]\n\n"


class Answer:
    """Serialises one request's answer. `created` is Unix seconds."""

    def __init__(self, api: Api, request_id: str, model: str, created: int) -> None:
        self._api = api
        prefix = "cmpl-" if api == "completions" else "chatcmpl-"
        self._head = {"id": prefix + request_id, "created": created, "model": model}
        kind = "text_completion" if api == "completions" else "chat.completion.chunk"
        # ...{"id":..,"object":..,"created":..,"model":..,"choices":[  without the closing.
        self._open = (
            b"data: "
            + json.dumps(
                {"id": prefix + request_id, "object": kind, "created": created, "model": model},
                separators=(",", ":"),
            )[:-1].encode()
        )
        self._choices = self._open + b',"choices":['

    def starts(self, choices: int) -> list[bytes]:
        """Events before the first token: chat's role, for each choice."""
        if self._api == "completions":
            return []
        return [
            self._choices
            + b'{"index":%d,"delta":{"role":"assistant","content":""},' % index
            + b'"logprobs":null,"finish_reason":null}]}\n\n'
            for index in range(choices)
        ]

    def token_parts(self, index: int) -> tuple[bytes, bytes, bytes]:
        """(before a token, after it, after the last): the token must need no JSON escape."""
        if self._api == "completions":
            before = self._choices + b'{"index":%d,"text":"' % index
            after = b'","logprobs":null,"finish_reason":%b,"stop_reason":null}],"usage":null}\n\n'
        else:
            before = self._choices + b'{"index":%d,"delta":{"content":"' % index
            after = b'"},"logprobs":null,"finish_reason":%b,"token_ids":null}]}\n\n'
        return before, after % b"null", after % b'"length"'

    def echo(self, index: int, text: str) -> bytes:
        """The event that repeats a prompt."""
        before, after, _ = self.token_parts(index)
        return before + json.dumps(text)[1:-1].encode() + after

    def usage(self, prompt_tokens: int, completion_tokens: int) -> bytes:
        """The usage event of `stream_options.include_usage`."""
        usage = json.dumps(_usage(prompt_tokens, completion_tokens), separators=(",", ":"))
        return self._open + b',"choices":[],"usage":' + usage.encode() + b"}\n\n"

    def whole(
        self,
        texts: Sequence[str],
        prompt_tokens: int,
        completion_tokens: int,
        kv_transfer_params: Mapping[str, Any] | None,
        finish_reason: str = "length",
    ) -> bytes:
        """The answer that is not streamed."""
        chat = self._api == "chat"
        choices = [
            _choice(self._api, index, text, finish_reason) for index, text in enumerate(texts)
        ]
        body = {
            "id": self._head["id"],
            "object": "chat.completion" if chat else "text_completion",
            "created": self._head["created"],
            "model": self._head["model"],
            "choices": choices,
            "service_tier": None,
            "system_fingerprint": None,
            "usage": _usage(prompt_tokens, completion_tokens),
            "prompt_logprobs" if chat else "prompt_token_ids": None,
            "kv_transfer_params": kv_transfer_params,
            "ec_transfer_params": None,
        }
        return json.dumps(body, separators=(",", ":")).encode()


def error_event(body: bytes) -> bytes:
    """The event of an error after the headers have gone."""
    return b"data: " + body + b"\n\n"


def _choice(api: Api, index: int, text: str, finish_reason: str) -> dict[str, Any]:
    end = {"logprobs": None, "finish_reason": finish_reason, "stop_reason": None}
    if api == "completions":
        return {"index": index, "text": text, **end, "prompt_logprobs": None}
    message: dict[str, Any] = {
        "role": "assistant",
        "content": text,
        "refusal": None,
        "tool_calls": [],
    }
    return {"index": index, "message": message, **end}


def _usage(prompt_tokens: int, completion_tokens: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
        "prompt_tokens_details": None,
    }
