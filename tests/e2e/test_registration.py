"""What comes in by the registration port, wrong or hostile, harms no request."""

import os
import socket
import time
from collections.abc import Callable, Iterator

import msgspec
import pytest
import zmq

from tests.e2e.load import run_right
from tests.e2e.stack import Stack, http, until

pytestmark = pytest.mark.e2e

CONFIG = {"probe": {"interval_s": 0.3}, "registration": {"ttl_s": 3}}


def record(address: str, role: str, dp_size: int = 1) -> bytes:
    """A heartbeat as vLLM sends it."""
    return msgspec.msgpack.encode(
        {
            "type": role,
            "http_address": address,
            "zmq_address": "host:127.0.0.1,handshake:6301,notify:61005",
            "dp_size": dp_size,
            "tp_size": 1,
            "transfer_mode": "READ",
        }
    )


@pytest.fixture
def dealer() -> Iterator[zmq.Socket[bytes]]:
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.LINGER, 1000)
        dealer.setsockopt(zmq.SNDHWM, 100_000)
        yield dealer


@pytest.mark.parametrize("role", ["P", "D"])
def test_a_router_is_no_engine(
    stack_of: Callable[..., Stack], dealer: zmq.Socket[bytes], role: str
) -> None:
    """The edge itself, and the sidecar's own ports, register and are never placed on: a request
    that is sent to its own edge would be placed again and again."""
    stack = stack_of(CONFIG)
    prefill, decode = stack.fleet([1], [1])
    dealer.connect(f"tcp://{stack.registration}")
    urls = (stack.url, stack.admin, stack.observe, stack.envoy_admin)
    own = {url.removeprefix("http://") for url in (*urls, stack.registration)}
    for address in own:
        dealer.send(record(address, role))
    until(
        lambda: all(stack.instances().get(a, {}).get("state") == "unhealthy" for a in own),
        "all are probed and refused",
    )
    run_right(stack.url, 8, 2)
    for engine in (*prefill, *decode):
        assert sum(sum(legs) for legs in engine.state()["ranks"].values()) == 8


def test_noise_and_floods_cost_no_request(
    stack_of: Callable[..., Stack], dealer: zmq.Socket[bytes]
) -> None:
    """TCP noise, broken frames, and a thousand engines that are none: requests go on, the control
    process answers, and what registered once is forgotten after its TTL."""
    stack = stack_of(CONFIG)
    prefill, decode = stack.fleet([1], [1])
    (control,) = stack.child_pids("control")
    host, port = stack.registration.split(":")
    noise = [socket.create_connection((host, int(port))) for _ in range(100)]
    for i, connection in enumerate(noise):
        connection.sendall(b"\xff\0\0\0\0\0\0\0\x01\x7f" if i % 2 else os.urandom(200))
    dealer.connect(f"tcp://{stack.registration}")
    for frames in ([b""], [b"a", b"b"], [b"\xc1"], [b"\x91" * 5000], [os.urandom(100)]):
        dealer.send_multipart(frames)
    for i in range(1500):
        size = 4096 if i % 10 == 0 else 1
        dealer.send(record(f"127.1.{i // 250}.{i % 250 + 1}:9", "PD"[i % 2], size))
    slowest = 0.0
    for _ in range(20):
        asked = time.monotonic()
        assert http("GET", f"{stack.observe}/metrics")[0] == 200
        slowest = max(slowest, time.monotonic() - asked)
        run_right(stack.url, 4, 4)
    assert slowest < 4, "the control process was busy with the flood"
    for connection in noise:
        connection.close()
    real = {engine.address for engine in (*prefill, *decode)}
    until(lambda: set(stack.instances()) == real, "the flood is forgotten", 30)
    assert stack.placeable() == real
    assert stack.child_pids("control") == [control]
    for reason in ("frames", "msgpack", "full"):
        assert stack.metric("pd_sidecar_heartbeats_rejected_total", reason=reason) > 0
