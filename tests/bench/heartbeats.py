"""The mock engines' heartbeats to every router of a run: MoRI-IO's (docs/protocol.md a)."""

import threading
from collections.abc import Sequence

import msgspec
import zmq

from tests.bench.nginx_engines import Registration

INTERVAL_S = 1.0
"""engines beat every 3 s; vllm-router forgets one after 5"""


class Heartbeats:
    """A thread that tells each router of each engine, until closed."""

    def __init__(self, engines: Sequence[Registration], routers: Sequence[str]) -> None:
        self._messages = [message(one) for one in engines]
        self._routers = list(routers)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with zmq.Context() as context:
            dealers = [context.socket(zmq.DEALER) for _ in self._routers]
            for dealer, router in zip(dealers, self._routers, strict=True):
                dealer.setsockopt(zmq.LINGER, 0)
                dealer.connect(f"tcp://{router}")
            while True:
                for dealer in dealers:
                    for one in self._messages:
                        try:
                            dealer.send(one, zmq.DONTWAIT)
                        except zmq.Again:
                            break  # a router that is away has missed enough
                if self._stop.wait(INTERVAL_S):
                    break
            for dealer in dealers:
                dealer.close()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()


def message(engine: Registration) -> bytes:
    host = engine.http_address.partition(":")[0]
    zmq_address = f"host:{host},handshake:{engine.handshake_port},notify:{engine.notify_port}"
    return msgspec.msgpack.encode(
        {
            "type": engine.role,
            "http_address": engine.http_address,
            "zmq_address": zmq_address,
            "dp_size": 1,
            "tp_size": 1,
            "transfer_mode": "READ",
        }
    )
