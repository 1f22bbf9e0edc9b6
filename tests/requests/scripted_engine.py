"""An engine whose every byte the test decides: it keeps what it was sent and answers by a script.

It answers the sidecar's probes by itself, and as a prefill instance hands over KV, so that a test
says no more than what it is about. One thread a connection; a script runs in its connection's
thread. Invariant: a request is kept only when it is whole, byte for byte as it came.
"""

import json
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.requests.raw_http import Closed, Head, Wire, chunked, read_chunks, read_head

MODEL = "scripted-model"
PROBE = "pd-sidecar-probe"


@dataclass(frozen=True)
class Got:
    """One request as it came."""

    head: Head
    body: bytes
    trailers: tuple[tuple[str, str], ...] = ()

    @property
    def method(self) -> str:
        return self.head.first.split(" ")[0]

    @property
    def path(self) -> str:
        return self.head.first.split(" ")[1]

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def is_prefill_leg(self) -> bool:
        """By its text: some tests send what Python's parser refuses."""
        return b'"do_remote_decode":true' in self.body


Script = Callable[[Wire, Got], None]
"""Sends an answer. Returning leaves the connection open; raising `Closed` or closing ends it."""


def answer(
    body: bytes = b'{"served": true}',
    status: str = "200 OK",
    headers: bytes = b"content-type: application/json\r\n",
) -> Script:
    """A script: one whole answer, with its length."""

    def script(wire: Wire, got: Got) -> None:
        length = b"content-length: %d\r\n" % len(body)
        head = b"HTTP/1.1 " + status.encode() + b"\r\n" + headers + length + b"\r\n"
        wire.send(head if got.method == "HEAD" else head + body)

    return script


def stream(*events: bytes, trailers: bytes = b"") -> Script:
    """A script: these events as chunks, one TCP write each."""

    def script(wire: Wire, _got: Got) -> None:
        wire.send(STREAM_HEAD)
        for event in events:
            wire.send(chunked(event))
        wire.send(b"0\r\n" + trailers + b"\r\n")

    return script


def hand_over(wire: Wire, got: Got) -> None:
    """What prefill answers to its leg (protocol c), as far as the sidecar looks at it."""
    kv = {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [1],
        "remote_engine_id": "127.0.0.1:9",
        "remote_host": "127.0.0.1",
        "remote_port": 9,
        "transfer_id": got.json["kv_transfer_params"].get("transfer_id"),
    }
    body = {"id": "x", "choices": [], "kv_transfer_params": kv}
    answer(json.dumps(body).encode())(wire, got)


STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)


class ScriptedEngine:
    """Listens from its making on. `script` may be replaced at any time."""

    def __init__(self, role: str, mode: str = "READ") -> None:
        self.role, self.mode = role, mode
        self.got: list[Got] = []
        self.script: Script = answer()
        self.leg: Script = hand_over
        """for prefill legs"""
        self._lock = threading.Lock()
        self._open: set[Wire] = set()
        self._is_closed = False
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __repr__(self) -> str:
        return f"ScriptedEngine({self.role}, {len(self.got)} requests)"

    @property
    def static(self) -> dict[str, Any]:
        """As an entry of the configuration's `instances`."""
        zmq = "host:127.0.0.1,handshake:9,notify:9"
        url = f"http://{self.address}"
        return {"role": self.role, "url": url, "transfer_mode": self.mode, "zmq_address": zmq}

    def reset(self) -> None:
        self.got.clear()
        self.script, self.leg = answer(), hand_over

    def close(self) -> None:
        self._is_closed = True
        # A thread that waits in accept() is not woken by close() alone.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for wire in self._open:
                wire.close()

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(Wire(connection),), daemon=True).start()

    def _serve(self, wire: Wire) -> None:
        with self._lock:
            self._open.add(wire)
        try:
            while True:
                self._answer(wire, _read(wire))
        except (Closed, OSError):
            pass
        finally:
            with self._lock:
                self._open.discard(wire)
            wire.close()

    def _answer(self, wire: Wire, got: Got) -> None:
        if PROBE in got.head.values("user-agent"):
            answer(_PROBED.get(got.path, b""))(wire, got)
            return
        self.got.append(got)
        (self.leg if got.is_prefill_leg else self.script)(wire, got)


_PROBED = {
    "/version": b'{"version": "0.33.0"}',
    "/v1/models": json.dumps(
        {"object": "list", "data": [{"id": MODEL, "object": "model", "max_model_len": 1 << 20}]}
    ).encode(),
}


def _read(wire: Wire) -> Got:
    head = read_head(wire)
    if "chunked" in head.values("transfer-encoding"):
        return Got(head, *read_chunks(wire))
    return Got(head, wire.take(int(head.get("content-length") or 0)))
