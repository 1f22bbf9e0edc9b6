"""What a streamed answer said, from its bytes: the text of each choice, and how it ended. Pure."""

import json
from collections import defaultdict
from dataclasses import dataclass

DONE = b"[DONE]"


class StreamError(ValueError):
    """The bytes are no server-sent events of a completion; the message says why."""


@dataclass(frozen=True, slots=True)
class Said:
    """`texts` by choice; `error` is the message of an error event, empty without one."""

    texts: dict[int, str]
    dones: int
    error: str


def read_stream(body: bytes, *, is_whole: bool) -> Said:
    """Read events up to the last whole one; raises StreamError.

    `is_whole`: the transfer ended cleanly, so that a half event is a fault.
    """
    *events, rest = body.split(b"\n\n")
    if rest and is_whole:
        raise StreamError(f"ends cleanly within an event: {rest[:80]!r}")
    texts: defaultdict[int, str] = defaultdict(str)
    dones, message = 0, ""
    for event in events:
        if not event.startswith(b"data: "):
            raise StreamError(f"not an event: {event[:80]!r}")
        if dones:
            raise StreamError("an event after [DONE]")
        data = event.removeprefix(b"data: ")
        if data == DONE:
            dones += 1
            continue
        message = _read_event(data, texts) or message
    return Said(dict(texts), dones, message)


def _read_event(data: bytes, texts: defaultdict[int, str]) -> str:
    """Add an event's text to its choice; returns the message of an error event, else nothing."""
    try:
        value = json.loads(data)
        if "error" in value:
            return str(value["error"]["message"])
        for choice in value["choices"]:
            piece = choice["text"] if "text" in choice else choice["delta"].get("content")
            texts[choice["index"]] += piece or ""
    except (ValueError, LookupError, TypeError, AttributeError):
        raise StreamError(f"an event is no token: {data[:80]!r}") from None
    return ""
