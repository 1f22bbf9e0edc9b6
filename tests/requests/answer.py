"""An answer over HTTP, and what two answers to the same question must have in common."""

import io
import json
from dataclasses import dataclass
from typing import Any

import aiohttp

OF_THE_MOMENT = frozenset(
    (
        "id", "created", "created_at", "completed_at", "item_id", "call_id", "request_id",
        "system_fingerprint", "kv_transfer_params",
    )
)  # fmt: skip
"""Fields that no two answers of one engine have in common, or that name the engine."""


@dataclass(frozen=True)
class Answer:
    status: int
    content_type: str
    body: bytes
    headers: dict[str, str]

    @property
    def said(self) -> Any:
        """All but what is of the moment: a JSON value, or a list of events."""
        if self.content_type.startswith("text/event-stream"):
            events = [_event(line) for line in self.body.decode().splitlines() if line]
            # Several choices are written as they come, which is another order each time.
            return sorted(events, key=_choice)
        return _lasting(json.loads(self.body)) if self.body else None

    @property
    def served_by(self) -> tuple[str, ...]:
        """The roles that the receipt names."""
        roles = ("prefill", "decode")
        return tuple(role for role in roles if f"x-pd-{role}" in self.headers)


def _event(line: str) -> Any:
    name, _, value = line.partition(": ")
    if name != "data" or not value.startswith("{"):
        return line
    return _lasting(json.loads(value))


def _choice(event: Any) -> int:
    choices = event.get("choices") if isinstance(event, dict) else None
    return choices[0]["index"] if choices else -1


def _lasting(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _lasting(v) for k, v in value.items() if k not in OF_THE_MOMENT}
    if isinstance(value, list):
        return [_lasting(one) for one in value]
    return value


async def ask(session: aiohttp.ClientSession, method: str, url: str, body: bytes | None) -> Answer:
    headers = {} if body is None else {"content-type": "application/json"}
    data = None if body is None else io.BytesIO(body)  # bytes as they are bring a warning from 1 MB
    async with session.request(method, url, data=data, headers=headers) as answer:
        return Answer(
            status=answer.status,
            content_type=answer.headers.get("content-type", ""),
            body=await answer.read(),
            headers={k.lower(): v for k, v in answer.headers.items()},
        )
