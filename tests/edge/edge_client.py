"""A client of the edge: one request, by `http.client` or byte for byte, and its answer."""

import http.client
import json
import socket
from collections.abc import Callable

from envoy_edge import Edge


class Answer:
    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.pairs = [(k.lower(), v) for k, v in response.getheaders()]
        self.headers = dict(self.pairs)
        self.body = response.read()

    @property
    def reason(self) -> str:
        """Asserts OpenAI's shape on the way."""
        error = json.loads(self.body)["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        assert error["code"] == self.headers["x-pd-error"]
        assert self.headers["content-type"] == "application/json"
        return self.headers["x-pd-error"]


def ask(edge: Edge, method: str, path: str, body: bytes = b"", **headers: str) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", edge.settings.listen_port, timeout=15)
    try:
        connection.request(
            method, path, body or None, {k.replace("_", "-"): v for k, v in headers.items()}
        )
        return Answer(connection.getresponse())
    finally:
        connection.close()


def raw(edge: Edge, data: bytes) -> tuple[bytes, bytes]:
    """Head and body of what Envoy says to these bytes, until it closes or an error is whole."""
    # Who waits for the close may see a reset: Envoy does not read what it refused.
    return _parted(_received(edge, data, lambda got: got.rstrip().endswith(b"}}")))


def raw_until_closed(edge: Edge, data: bytes) -> tuple[bytes, bytes]:
    """The first head, and all that follows until Envoy closes."""
    return _parted(_received(edge, data, lambda _got: False))


def _received(edge: Edge, data: bytes, is_whole: Callable[[bytes], bool]) -> bytes:
    answer = b""
    with socket.create_connection(("127.0.0.1", edge.settings.listen_port), timeout=5) as s:
        s.sendall(data)
        while not is_whole(answer) and (chunk := s.recv(65536)):
            answer += chunk
    return answer


def _parted(answer: bytes) -> tuple[bytes, bytes]:
    head, _, body = answer.partition(b"\r\n\r\n")
    return head, body
