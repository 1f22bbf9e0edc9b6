"""Stands between the router and a decode engine and changes the KV parameters of what passes."""

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Change = Callable[[dict[str, Any]], dict[str, Any]]
"""`kv_transfer_params` as the router wrote them, or the whole body, to what decode gets"""


class Meddler:
    """Answers pass unchanged, whole. A request without KV parameters does too."""

    def __init__(
        self,
        target: str,
        change: Change,
        *,
        body: Change = lambda asked: asked,
        is_deaf: bool = False,
        timeout_s: float = 20.0,
    ) -> None:
        """`is_deaf`: a request with KV parameters gets no answer, and never arrives."""
        self.passed: list[dict[str, Any]] = []
        """the parameters as the router wrote them, oldest first"""
        self._target = target
        self._change = change
        self._change_body = body
        self._is_deaf = is_deaf
        self._timeout_s = timeout_s
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _changed(self, body: bytes) -> bytes | None:
        """None: it gets lost."""
        try:
            asked = json.loads(body)
            params = asked["kv_transfer_params"]
        except (ValueError, KeyError, TypeError):
            return body
        self.passed.append(params)
        if self._is_deaf:
            return None
        changed = asked | {"kv_transfer_params": self._change(dict(params))}
        return json.dumps(self._change_body(changed)).encode()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        meddler = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._forward(None)

            def do_POST(self) -> None:
                size = int(self.headers.get("content-length", 0))
                changed = meddler._changed(self.rfile.read(size))
                if changed is None:
                    self.close_connection = True
                else:
                    self._forward(changed)

            def _forward(self, body: bytes | None) -> None:
                skipped = ("host", "content-length", "connection", "accept-encoding")
                headers = {k: v for k, v in self.headers.items() if k.lower() not in skipped}
                request = urllib.request.Request(
                    meddler._target + self.path, body, headers, method=self.command
                )
                try:
                    with urllib.request.urlopen(request, timeout=meddler._timeout_s) as answer:
                        self._answer(answer.status, answer.headers, answer.read())
                except urllib.error.HTTPError as error:
                    self._answer(error.code, error.headers, error.read())
                except OSError:
                    self.close_connection = True  # as if the engine had dropped it

            def _answer(self, status: int, headers: Any, body: bytes) -> None:
                self.send_response(status)
                self.send_header("content-type", headers.get("content-type", "text/plain"))
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Nothing: pytest shows what failed."""

        return Handler
