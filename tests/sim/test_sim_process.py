"""An engine as a process: its heartbeat, its ready line, how it ends, what it refuses."""

import asyncio
import re
import signal
import socket
import subprocess
import sys
import time

import msgspec
import pytest
import zmq
import zmq.asyncio

ROUTER_LIMIT_MS = 10_000


@pytest.fixture
def router():
    context = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.RCVTIMEO, ROUTER_LIMIT_MS)
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    yield socket, f"127.0.0.1:{port}"
    socket.close()
    context.term()


def _ping(socket) -> dict[str, object]:
    identity, payload = socket.recv_multipart()
    assert len(identity) == 5
    return msgspec.msgpack.decode(payload)


@pytest.mark.asyncio
async def test_typed_heartbeat_is_constant(lab, router) -> None:
    socket, proxy = router
    engine = lab.start(
        "decode", proxy=proxy, ping_interval_s=0.05, dp_size=2, tp_size=1, mode="WRITE"
    )
    first, second = _ping(socket), _ping(socket)
    assert first == second
    assert first == {
        "type": "D",
        "http_address": engine.ready["http"],
        "zmq_address": engine.zmq_address,
        "dp_size": 2,
        "tp_size": 1,
        "transfer_mode": "WRITE",
    }


@pytest.mark.asyncio
@pytest.mark.parametrize("suffix", ["/v1/completions", "/v1"])
async def test_register_heartbeat_of_old_versions(lab, router, suffix) -> None:
    socket, proxy = router
    engine = lab.start(
        "prefill",
        proxy=proxy,
        ping_interval_s=0.05,
        version="0.19.1",
        request_address_suffix=suffix,
    )
    first, second = _ping(socket), _ping(socket)
    assert (first.pop("index"), second.pop("index")) == ("0", "1")
    assert first == {
        "type": "register",
        "role": "P",
        "request_address": engine.url + suffix,
        "handshake_port": engine.ready["handshake_port"],
        "notify_port": engine.ready["notify_port"],
        "dp_size": 1,
        "tp_size": 1,
        "transfer_mode": "READ",
    }


@pytest.mark.asyncio
async def test_first_ping_comes_before_http_listens(lab, router) -> None:
    router_socket, proxy = router
    engine = lab.spawn("prefill", proxy=proxy, start_delay_s=1.0)
    host, port = str(_ping(router_socket)["http_address"]).split(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)))
    engine.await_ready()
    socket.create_connection((host, int(port))).close()


@pytest.mark.asyncio
async def test_beats_can_be_paused(lab, router) -> None:
    socket, proxy = router
    engine = lab.start("prefill", proxy=proxy, ping_interval_s=0.05)
    await lab.control(engine, "beats", on=False)
    while socket.poll(200):  # four intervals of silence
        socket.recv_multipart()
    assert (await lab.state(engine))["is_dead"] is False
    await lab.control(engine, "beats", on=True)
    _ping(socket)


@pytest.mark.asyncio
async def test_proxy_that_is_away_delays_nothing(lab) -> None:
    engine = lab.start("prefill", proxy="127.0.0.1:9")
    assert (await lab.state(engine))["running"] == 0


@pytest.mark.asyncio
async def test_end_of_the_lifeline_ends_the_process(lab) -> None:
    engine = lab.start("prefill")
    engine.close_lifeline()
    assert await asyncio.to_thread(engine.process.wait, 5) == 0


@pytest.mark.asyncio
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signals_end_the_process_while_requests_run(lab, body_of, number) -> None:
    engine = lab.start("prefill", ttft_ms=3600_000)
    body = body_of("completions", "hello")
    asking = asyncio.ensure_future(lab.ask(engine, "completions", body))
    await lab.until(engine, lambda state: state["running"] == 1)
    start = time.monotonic()
    engine.process.send_signal(number)
    assert await asyncio.to_thread(engine.process.wait, 5) == 0
    assert time.monotonic() - start < 2
    await asyncio.gather(asking, return_exceptions=True)


def _run(*arguments: str) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "sidecar.sim", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (("engine",), "--role"),
        (("engine", "--role", "both"), "--role"),
        (("engine", "--role", "prefill", "--dp-size", "0"), "--dp-size"),
        (("engine", "--role", "prefill", "--dp-size", "two"), "--dp-size"),
        (("engine", "--role", "prefill", "--http", "8000"), "--http"),
        (("engine", "--role", "prefill", "--http", "192.0.2.1:0"), "--http"),
        (("engine", "--role", "prefill", "--proxy", "host"), "--proxy"),
        (("engine", "--role", "prefill", "--version", "new"), "--version"),
        (("engine", "--role", "prefill", "--ttft-ms", "nan"), "--ttft-ms"),
        (("engine", "--role", "prefill", "--lifeline-fd", "77"), "--lifeline-fd"),
        (("engine", "--role", "prefill", "--speed", "7"), "--speed"),
        (("engine", "--role", "prefill", "--handshake-port", "65535", "--dp-size", "2"), "65535"),
    ],
)
def test_bad_options_are_one_line_and_status_2(arguments, names) -> None:
    status, out, err = _run(*arguments)
    assert (status, out) == (2, "")
    assert re.fullmatch(r"sidecar\.sim: [^\n]+\n", err), err
    assert names in err


@pytest.mark.parametrize("option", ["--http", "--handshake-port", "--notify-port"])
def test_port_in_use_is_one_line_and_status_2(option) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        value = f"127.0.0.1:{port}" if option == "--http" else str(port)
        status, out, err = _run("engine", "--role", "prefill", option, value)
    assert (status, out) == (2, "")
    assert re.fullmatch(r"sidecar\.sim: [^\n]+in use\n", err), err


@pytest.mark.asyncio
async def test_ipv6_addresses_are_bare_in_heartbeats(lab, router) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 loopback")
    router_socket, proxy = router
    engine = lab.start("prefill", proxy=proxy, http="[::1]:0")
    ping = _ping(router_socket)
    port = engine.ready["http"].rpartition(":")[2]
    assert engine.ready["http"] == f"[::1]:{port}"
    assert ping["http_address"] == f"::1:{port}"
    assert str(ping["zmq_address"]).startswith("host:::1,handshake:")


@pytest.mark.asyncio
async def test_proxy_name_that_does_not_resolve_delays_nothing(lab) -> None:
    engine = lab.start("prefill", proxy="no-such-host.invalid:36367")
    assert (await lab.state(engine))["running"] == 0
