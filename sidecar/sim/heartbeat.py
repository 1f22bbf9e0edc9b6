"""The heartbeat to the proxy: a thread of its own, as vLLM's is a process of its own.

So it proves, as in vLLM, that the process lives and not that the engine is healthy. Payloads
are those of protocol.md a: shape `register` (A, up to 0.19) and `typed` (B, from 0.20).
"""

import threading
from collections.abc import Callable

import msgspec
import zmq

from sidecar.sim.options import Address, SimOptions

SEND_TIMEOUT_MS = 1000  # moriio_heartbeat.py 60-61, as is LINGER 0


def payload_maker(
    options: SimOptions, http: Address, handshake_port: int, notify_port: int
) -> Callable[[int], bytes]:
    """A function from the ping's number to its payload; only shape `register` counts."""
    role = "P" if options.role == "prefill" else "D"
    sizes = {
        "dp_size": options.dp_size,
        "tp_size": options.tp_size,
        "transfer_mode": options.mode,
    }
    if options.heartbeat_shape == "typed":
        # IPv6 goes bare into both addresses (vLLM moriio_connector.py 1798-1800).
        payload = msgspec.msgpack.encode(
            {
                "type": role,
                "http_address": f"{http.host}:{http.port}",
                "zmq_address": f"host:{http.host},handshake:{handshake_port},notify:{notify_port}",
                **sizes,
            }
        )
        return lambda _number: payload
    record = {
        "type": "register",
        "role": role,
        "request_address": f"http://{http}{options.request_address_suffix}",
        "handshake_port": handshake_port,
        "notify_port": notify_port,
        **sizes,
    }
    return lambda number: msgspec.msgpack.encode({**record, "index": str(number)})


class Heartbeat:
    """Pings one proxy at a fixed interval until stopped; can be paused."""

    def __init__(self, proxy: Address, interval_s: float, payload: Callable[[int], bytes]) -> None:
        self._proxy = proxy
        self._interval_s = interval_s
        self._payload = payload
        self._stop = threading.Event()
        self._first = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self.is_on = True
        self.sent = 0

    def start(self, wait_s: float = 2.0) -> None:
        """Start, and wait until the first ping is on its way (vLLM pings before HTTP listens)."""
        self._thread.start()
        self._first.wait(wait_s)

    def stop(self) -> None:
        """No ping after this; there is no goodbye."""
        self._stop.set()
        self._thread.join(timeout=2.0)

    def _run(self) -> None:
        context = zmq.Context()
        dealer = context.socket(zmq.DEALER)
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.setsockopt(zmq.SNDTIMEO, SEND_TIMEOUT_MS)
        dealer.setsockopt(zmq.IPV6, int(":" in self._proxy.host))
        try:
            dealer.connect(f"tcp://{self._proxy}")
            while not self._stop.is_set():
                if self.is_on:
                    self._ping(dealer)
                self._first.set()
                self._stop.wait(self._interval_s)
        finally:
            dealer.close()
            context.term()

    def _ping(self, dealer: "zmq.Socket[bytes]") -> None:
        try:
            dealer.send(self._payload(self.sent))
            self.sent += 1
        except zmq.ZMQError:
            pass  # vLLM drops the ping and tries again at the next interval
