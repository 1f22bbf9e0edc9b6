"""The loads: wrk's words, and a crowd of streams against the streaming engine."""

import json
import select
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench.crowd_process import CrowdProcess
from tests.bench.mock_answers import PATH, chat_body, decode_answer, stream_events
from tests.bench.nginx_engines import NginxEngines
from tests.bench.stream_engine_process import StreamEngine
from tests.bench.targets.target import ask
from tests.bench.whole_part import faults
from tests.bench.wrk import MARK, Load, WrkError, read_output

SAID = {
    "answers": 1000,
    "duration_us": 500000,
    "p50_us": 1500,
    "p99_us": 9000,
    "connect": 1,
    "read": 2,
    "write": 3,
    "status": 4,
    "timeout": 5,
}


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[StreamEngine]:
    made = StreamEngine(tmp_path)
    yield made
    made.close()


def test_wrk_is_read() -> None:
    """An answer that is not 2xx is a failure and no answer."""
    load = read_output(f"Running 1s test\n{MARK}{json.dumps(SAID)}\n")
    assert load == Load(996, 0.5, 0.0015, 0.009, 15)
    assert load.per_second == 1992


def test_a_wrk_that_says_nothing_is_an_error() -> None:
    """With what it said instead."""
    with pytest.raises(WrkError, match="unable to connect"):
        read_output("unable to connect to 127.0.0.1:1 Connection refused\n")


@pytest.mark.parametrize(
    ("load", "prefilled", "decoded", "words"),
    [
        (Load(0, 1, 0, 0, 0), 0, 0, "no answers"),
        (Load(10, 1, 0, 0, 1), 10, 10, "1 requests failed"),
        (Load(10, 1, 0, 0, 0), 10, 9, "decode was asked 9 times"),
        (Load(10, 1, 0, 0, 0), 9, 10, "prefill was asked 9 times"),
    ],
)
def test_what_is_wrong_with_a_load_is_said(
    load: Load, prefilled: int, decoded: int, words: str
) -> None:
    """Each by itself; a load with both legs has nothing wrong."""
    assert any(words in line for line in faults(load, prefilled, decoded, True))
    assert faults(Load(10, 1, 0, 0, 0), 10, 10, True) == []


def test_a_leg_that_a_target_does_not_make_is_not_missed() -> None:
    """Plain Envoy asks no prefill."""
    assert faults(Load(10, 1, 0, 0, 0), 0, 10, False) == []


@pytest.mark.parametrize("size", [600, 9_000, 220_000, 4_000_000])
def test_a_body_is_as_large_as_asked(size: int) -> None:
    """To the hundredth, and JSON."""
    body = chat_body(size)
    assert abs(len(body) - size) < max(60, size / 100)
    assert json.loads(body)["stream"] is False


def test_a_crowd_of_streams_is_whole_and_paced(engine: StreamEngine) -> None:
    """50 streams of 5 tokens, 20 ms apart: all decode's own, the gaps those of the engine."""
    engine.set_pace(20, 5)
    with CrowdProcess(engine.addresses[0], 50, 5, limit_s=10) as crowd:
        assert crowd.connected == 50
        crowd.go()
        seen = crowd.finish()
        assert crowd.count() == 50 * 6  # [DONE] is an event too
    assert seen.faults == {}
    assert seen.gap_s is not None
    assert seen.gap_s[0] > 0.01
    assert engine.count() == 50


def test_a_crowd_sees_a_wrong_answer(engine: StreamEngine) -> None:
    """Four tokens where five were expected."""
    engine.set_pace(10, 4)
    with CrowdProcess(engine.addresses[0], 3, 5, limit_s=10) as crowd:
        crowd.go()
        assert crowd.finish().faults == {"not decode's own answer": 3}


def test_a_crowd_does_not_wait_for_ever(engine: StreamEngine) -> None:
    """Streams that last a minute, and a patience of one second."""
    engine.set_pace(1000, 60)
    with CrowdProcess(engine.addresses[0], 3, 60, limit_s=1) as crowd:
        crowd.go()
        assert crowd.finish().faults == {"not whole in time": 3}


def test_a_crowd_that_finds_nobody_says_so(engine: StreamEngine) -> None:
    """Nothing listens any more."""
    engine.close()
    with CrowdProcess(engine.addresses[0], 2, 0, connects_late=True, limit_s=10) as crowd:
        crowd.go()
        assert crowd.finish().failures == 2


def test_events_are_some_200_bytes() -> None:
    """As a chat's chunks are."""
    assert all(170 < len(event) < 230 for event in stream_events(20))


needs_nginx = pytest.mark.skipif(
    not (shutil.which("nginx") or Path("/usr/sbin/nginx").exists()),
    reason="nginx is not installed (apt-get install nginx)",
)


@needs_nginx
def test_nginx_waits_for_the_whole_body(tmp_path: Path) -> None:
    """No answer to half of a long request; to all of it, one."""
    decode = NginxEngines("D", tmp_path)
    try:
        host, _, port = decode.addresses[0].partition(":")
        body = chat_body(220_000)
        with socket.create_connection((host, int(port)), timeout=10) as client:
            head = f"POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
            client.sendall(head.encode() + body[:100_000])
            assert select.select([client], [], [], 0.3)[0] == []
            client.sendall(body[100_000:])
            assert client.recv(1000).startswith(b"HTTP/1.1 200 OK")
    finally:
        decode.close()


@needs_nginx
def test_nginx_answers_and_counts(tmp_path: Path) -> None:
    """Short or long, from each address: decode's answer, and one request more."""
    decode = NginxEngines("D", tmp_path)
    try:
        for address in decode.addresses:
            for size in (600, 5_000, 4_000_000):
                before = decode.count()
                assert ask(address, chat_body(size)) == (200, decode_answer().encode())
                assert decode.count() - before == 2  # the question itself is one
    finally:
        decode.close()
