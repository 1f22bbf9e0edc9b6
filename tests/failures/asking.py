"""A client that asks once and says exactly how its answer ended."""

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import monotonic
from urllib.parse import urlsplit

LIMIT_S = 15.0


@dataclass
class Ended:
    """How an answer ended, as its client saw it."""

    status: int
    headers: dict[str, str]
    body: bytes
    is_cut: bool
    """the transfer broke before its end"""
    seconds: float = 0.0

    @property
    def text(self) -> str:
        """Of a good answer, streamed or whole."""
        if not self.headers.get("content-type", "").startswith("text/event-stream"):
            return str(json.loads(self.body)["choices"][0]["text"])
        events = [line[6:] for line in self.body.splitlines() if line.startswith(b"data: ")]
        whole = [json.loads(event) for event in events if event != b"[DONE]"]
        return "".join(choice["text"] for event in whole for choice in event["choices"])

    @property
    def is_done(self) -> bool:
        return self.body.rstrip().endswith(b"[DONE]")


@dataclass
class Client:
    url: str
    timeout_s: float = LIMIT_S
    extra: Mapping[str, str] = field(default_factory=dict)

    def post(self, path: str, body: bytes, headers: Mapping[str, str]) -> Ended:
        """One request on a connection of its own. Raises TimeoutError when it hangs."""
        parts = urlsplit(self.url)
        assert parts.hostname is not None
        started = monotonic()
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=self.timeout_s)
        try:
            connection.request(
                "POST", path, body, {"content-type": "application/json"} | dict(headers)
            )
            answer = connection.getresponse()
            received, is_cut = b"", False
            try:
                while chunk := answer.read1(65536):
                    received += chunk
            except (http.client.HTTPException, ConnectionError):
                is_cut = True
            is_cut = is_cut or not _is_whole(answer, received)
            named = {name.lower(): value for name, value in answer.getheaders()}
            return Ended(answer.status, named, received, is_cut, monotonic() - started)
        finally:
            connection.close()


def _is_whole(answer: http.client.HTTPResponse, received: bytes) -> bool:
    length = answer.getheader("content-length")
    return int(length) == len(received) if length else answer.chunk_left is None
