"""Engines come, go, fall ill and return; placement follows within the stated times."""

import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import ClassVar

import pytest

from tests.e2e.load import run_right
from tests.e2e.stack import Engine, Stack, http, until
from tests.ports import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.timed]

TTL_S = 3.0
PROBE = {"interval_s": 0.5, "timeout_s": 0.5}
SLACK_S = 0.5
"""of the test's own polling on a busy machine"""
CONFIG = {"registration": {"ttl_s": TTL_S}, "probe": PROBE}


def legs(engine: Engine) -> int:
    ranks = engine.state()["ranks"]
    return sum(sum(ranks[leg]) for leg in ("prefill", "decode", "plain"))


def gone_within(stack: Stack, engine: Engine, limit_s: float, since: float) -> None:
    """It leaves placement before `limit_s`, and no request reaches it afterwards."""
    until(
        lambda: engine.address not in stack.placeable(),
        f"{engine.address} left placement",
        limit_s - (time.monotonic() - since),
    )


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_silent_engine_leaves_within_its_ttl_and_returns(
    stack_of: Callable[..., Stack], role: str
) -> None:
    """No heartbeat: out of placement within TTL + 1 s; used again when it beats again."""
    stack = stack_of(CONFIG)
    prefill, decode = stack.fleet([1, 1], [1, 1])
    engine = (prefill if role == "prefill" else decode)[0]
    engine.ask("beats", on=False)
    gone_within(stack, engine, TTL_S + 1 + SLACK_S, time.monotonic())
    before = legs(engine)
    run_right(stack.url, 20, 4)
    assert legs(engine) == before, "a request reached an engine that is out of placement"
    engine.ask("beats", on=True)
    stack.wait_placeable(engine, timeout_s=5)
    run_right(stack.url, 20, 4)
    assert legs(engine) > before


@pytest.mark.parametrize("health", [{"status": 503}, {"refuse": True}])
def test_unhealthy_engine_leaves_at_the_next_probe(
    stack_of: Callable[..., Stack], health: dict[str, object]
) -> None:
    """/health that answers other than 200 or refuses: out within interval + time-out + 1 s."""
    stack = stack_of({**CONFIG, "registration": {"ttl_s": 60}})
    _, decode = stack.fleet([1], [1, 1])
    engine = decode[0]
    engine.ask("health", **health)
    gone_within(
        stack,
        engine,
        PROBE["interval_s"] + PROBE["timeout_s"] + 1 + SLACK_S,
        time.monotonic(),
    )
    before = legs(engine)
    run_right(stack.url, 10, 2)
    assert legs(engine) == before
    engine.ask("health", status=200)
    stack.wait_placeable(engine, timeout_s=5)


class Ill(BaseHTTPRequestHandler):
    """An engine that listens and is not well: `/health` answers `health`; POSTs are recorded."""

    health = 503
    posts: ClassVar[list[str]] = []
    probes = 0

    def do_GET(self) -> None:
        if self.path == "/health":
            type(self).probes += 1
        self.send_response(self.health if self.path == "/health" else 404)
        self.send_header("content-length", "0")
        self.end_headers()

    def do_POST(self) -> None:
        self.posts.append(self.path)
        self.send_error(500)

    def log_message(self, *_: object) -> None:
        """Quiet."""


def test_never_before_the_first_200(stack_of: Callable[..., Stack]) -> None:
    """Known and listening from the start, /health not 200: probed, never placed on; then at once
    when it is."""

    class Engine503(Ill):
        posts: ClassVar[list[str]] = []

    with ThreadingHTTPServer(("127.0.0.1", 0), Engine503) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{server.server_port}"
        static = {"role": "decode", "url": f"http://{address}"}
        stack = stack_of({**CONFIG, "instances": [static]})
        stack.fleet([1], [1])
        until(lambda: Engine503.probes >= 3, "it was probed again and again")
        run_right(stack.url, 20, 4)
        assert address not in stack.placeable()
        assert not Engine503.posts, "a request reached an engine that never answered 200"
        Engine503.health = 200
        until(lambda: address in stack.placeable(), "the first 200 lets it in", 3)
        http("POST", f"{stack.url}/v1/completions", {"prompt": "x", "max_tokens": 1})
        http("POST", f"{stack.url}/v1/completions", {"prompt": "y", "max_tokens": 1})
        assert Engine503.posts, "it is in the walk now, so the check above could have failed"
        server.shutdown()


def test_an_engine_that_beats_before_it_listens_costs_nothing(
    stack_of: Callable[..., Stack],
) -> None:
    """As vLLM does: heartbeats first, HTTP seconds later. Nothing is sent there until it serves."""
    stack = stack_of(CONFIG)
    stack.fleet([1], [1])
    address = f"127.0.0.1:{free_port()}"
    options = {"http": address, "start_delay_s": 3, "ping_interval_s": 1}
    starting = Thread(target=lambda: stack.engine("decode", **options))
    starting.start()
    try:
        until(lambda: address in stack.instances(), "it is known")
        run_right(stack.url, 20, 4)
        assert address not in stack.placeable()
        until(lambda: address in stack.placeable(), "it serves", 10)
    finally:
        starting.join()
    run_right(stack.url, 20, 4)
    assert legs(stack.engines[-1]) == 10


def test_one_slow_health_check_empties_no_pool(stack_of: Callable[..., Stack]) -> None:
    """One /health slower than the time-out, or two, take the only engine out not for a moment;
    three in a row do, so the time-outs were seen."""

    class Slow(Ill):
        health = 200
        late = 0
        """so many probes are answered too late"""
        since_late = 0
        """probes that came after the last late one"""

        def do_GET(self) -> None:
            if self.path == "/health" and type(self).late > 0:
                type(self).late, type(self).since_late = type(self).late - 1, 0
                Event().wait(PROBE["timeout_s"] + 0.3)
                self.close_connection = True  # the prober is gone
                return
            type(self).since_late += self.path == "/health"
            super().do_GET()

    with ThreadingHTTPServer(("127.0.0.1", 0), Slow) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{server.server_port}"
        static = {"role": "decode", "url": f"http://{address}"}
        stack = stack_of({**CONFIG, "instances": [static]})
        until(lambda: address in stack.placeable(), "it is ready")
        for late in (1, 2):
            Slow.since_late, Slow.late = 0, late
            until(lambda: Slow.late == 0 and Slow.since_late >= 2, f"{late} late, then well again")
            assert f"{address} unhealthy" not in stack.log()
            assert address in stack.placeable()
        Slow.late = 3
        until(lambda: f"{address} unhealthy" in stack.log(), "three in a row take it out")
        until(lambda: address in stack.placeable(), "and the next good one brings it back")
        server.shutdown()


def test_an_engine_that_returns_as_another_version_is_known_as_that(
    stack_of: Callable[..., Stack],
) -> None:
    """Rolled back at its address within the TTL: of unknown version while it is away, and described
    as what it is now before it is ready; nothing is sent there as to what it was."""
    stack = stack_of({**CONFIG, "registration": {"ttl_s": 60}})
    _, decode = stack.fleet([1], [1, 1], version="0.33.0")
    first = decode[0]
    until(lambda: stack.instances()[first.address]["version"] == "0.33", "it said its version")
    ports = {name: first.ready[name] for name in ("handshake_port", "notify_port")}
    first.close()
    until(lambda: stack.instances()[first.address]["state"] == "unhealthy", "it is gone")
    assert stack.instances()[first.address]["version"] is None
    again = stack.engine("decode", http=first.address, ping_interval_s=1, version="0.32.0", **ports)
    stack.wait_placeable(again)
    assert stack.instances()[again.address]["version"] == "0.32"
    since = stack.log().rpartition(f"{again.address} unhealthy")[2]
    assert since.index(f"{again.address} described") < since.index(f"{again.address} ready")
    run_right(stack.url, 6, 2)
    assert legs(again) == 3


def test_pool_of_old_engines_registers_and_serves(stack_of: Callable[..., Stack]) -> None:
    """vLLM 0.19's heartbeat shape, and 0.25's ids with embedded addresses, both serve right."""
    stack = stack_of(CONFIG)
    prefill, decode = stack.fleet([1], [1], version="0.19.1")
    run_right(stack.url, 4, 2)
    for engine in (*prefill, *decode):
        assert not engine.state()["errors"]
        engine.close()
    stack.fleet([1], [1], "WRITE", version="0.25.0")
    until(lambda: len(stack.placeable()) == 2, "the old ones are gone", 10)
    run_right(stack.url, 4, 2)


def test_empty_pool_is_a_clear_503(stack_of: Callable[..., Stack]) -> None:
    """Without engines: 503, OpenAI's shape, which role is missing, and when to try again."""
    stack = stack_of(CONFIG)
    status, body = http("POST", f"{stack.url}/v1/completions", {"prompt": "x"})
    assert status == 503
    assert b"no_prefill_instance" in body
    stack.fleet([1], [])
    status, body = http("POST", f"{stack.url}/v1/completions", {"prompt": "x"})
    assert status == 503
    assert b"no_decode_instance" in body
    assert http("GET", f"{stack.url}/health")[0] == 503
    assert http("GET", f"{stack.observe}/readyz")[0] == 503
    stack.fleet([], [1])
    assert http("GET", f"{stack.url}/health")[0] == 200
    assert http("GET", f"{stack.observe}/readyz")[0] == 200


def test_static_instances_need_no_heartbeat(stack_of: Callable[..., Stack]) -> None:
    """Instances of the configuration serve without ever registering."""
    prefill = Engine("prefill", "")
    decode = Engine("decode", "")
    try:
        static = [
            {
                "role": e.role,
                "url": f"{e.url}/v1",
                "zmq_address": (
                    f"host:127.0.0.1,handshake:{e.ready['handshake_port']},"
                    f"notify:{e.ready['notify_port']}"
                ),
            }
            for e in (prefill, decode)
        ]
        stack = stack_of({**CONFIG, "instances": static})
        stack.wait_placeable(prefill, decode)
        run_right(stack.url, 6, 2)
    finally:
        prefill.close()
        decode.close()


def test_moving_to_the_other_role(stack_of: Callable[..., Stack]) -> None:
    """An address that registers under the other role moves, and counts once."""
    stack = stack_of(CONFIG)
    prefill, decode = stack.fleet([1, 1], [1])
    port = prefill[1].address.rpartition(":")[2]
    prefill[1].close()
    moved = stack.engine("decode", http=f"127.0.0.1:{port}", ping_interval_s=1)
    until(lambda: stack.instances()[moved.address]["role"] == "decode", "it moved")
    stack.wait_placeable(moved)
    assert len(stack.instances()) == 3
    run_right(stack.url, 12, 3)
    assert legs(moved) == 6, "it takes its half of the decode legs"
    assert legs(decode[0]) == 6
