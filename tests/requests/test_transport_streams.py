"""A streamed answer is forwarded event by event: nothing is held back, nothing is joined."""

import threading
from collections.abc import Iterator

import pytest

from tests.requests.raw_http import Client, Closed, chunked, request
from tests.requests.scripted_engine import STREAM_HEAD, Got, Wire
from tests.requests.transport_h2 import H2Client
from tests.requests.transport_stack import JSON, PATH, WAYS, Wired, prompt

pytestmark = pytest.mark.e2e

EVENTS = [
    b'data: {"i": 1}\n\n',
    b": a comment\n\n",
    b"event: message\r\ndata: {}\r\n\r\n",
    b"data: \xe2\x82\xac\n\n",
    b"\n",
    b"x",
    b'data: "' + b"y" * 100_000 + b'"\n\n',
    b"data: [DONE]\n\n",
]


@pytest.fixture(scope="module")
def write_wired() -> Iterator[Wired]:
    made = Wired("WRITE")
    yield made
    made.close()


@pytest.fixture(params=["READ", "WRITE"])
def either(request: pytest.FixtureRequest) -> Iterator[Wired]:
    name = {"READ": "session_wired", "WRITE": "write_wired"}[request.param]
    found: Wired = request.getfixturevalue(name)
    found.reset()
    yield found
    found.reset()


class LockStep:
    """A script that sends the next bytes only when the test says so."""

    def __init__(self, *parts: bytes) -> None:
        self._parts = parts
        self._go = threading.Semaphore(0)

    def __call__(self, wire: Wire, _got: Got) -> None:
        wire.send(STREAM_HEAD)
        for part in self._parts:
            assert self._go.acquire(timeout=20), "the test has given up"
            wire.send(part)

    def next(self) -> None:
        self._go.release()


def opened(wired: Wired, way: str) -> Client:
    client = wired.client()
    client.send(request(f"POST {PATH[way]}", JSON, body=prompt(way, stream=True)))
    return client


@pytest.mark.parametrize("way", WAYS)
def test_every_event_reaches_the_client_before_the_next_is_sent(either: Wired, way: str) -> None:
    """In lock step, byte for byte. The headers come before the first event."""
    script = LockStep(*(chunked(event) for event in EVENTS), b"0\r\n\r\n")
    either.script(way, script)
    with opened(either, way) as client:
        head = client.head()
        assert head.get("content-type") == "text/event-stream; charset=utf-8"
        for event in EVENTS:
            script.next()
            received = b""
            while len(received) < len(event):
                received += client.chunk()
            assert received == event
            assert client.wire.is_silent_for(0.01), "more than what was sent"
        script.next()
        assert client.chunk() == b""


@pytest.mark.parametrize("way", WAYS)
def test_an_event_in_pieces_is_forwarded_in_pieces(either: Wired, way: str) -> None:
    """Split within its chunk, a character, its line ends: nothing waits for the rest."""
    event = b'data: {"text": "\xe2\x82\xac"}\r\n\r\n'
    framed = chunked(event)
    start = framed.index(event)
    cuts = [start + 3, start + event.index(b"\x82"), start + len(event) - 1]
    pieces = [framed[a:b] for a, b in zip([0, *cuts], [*cuts, len(framed)], strict=True)]
    script = LockStep(*pieces, b"0\r\n\r\n")
    either.script(way, script)
    with opened(either, way) as client:
        client.head()
        received = b""
        for cut in cuts:
            script.next()
            while len(received) < cut - start:
                received += client.chunk()
            assert received == event[: cut - start]
        script.next()
        script.next()
        while part := client.chunk():
            received += part
        assert received == event


def test_http_2_streams_in_lock_step_too(wired: Wired) -> None:
    """Two streams of one connection, each at its own pace."""
    scripts = [LockStep(*(chunked(event) for event in EVENTS), b"0\r\n\r\n") for _ in range(2)]
    wired.script("pd", scripts[0])
    wired.script("aggregated", scripts[1])
    with H2Client(wired.url) as client:
        streams = [client.post(PATH[w], prompt(w, stream=True)) for w in ("pd", "aggregated")]
        for end in range(1, len(EVENTS) + 1):
            for stream, script in zip(streams, scripts, strict=True):
                script.next()
                client.receive_until(stream, len(b"".join(EVENTS[:end])))
        for stream, script in zip(streams, scripts, strict=True):
            script.next()
            assert client.answer(stream).body == b"".join(EVENTS)


@pytest.mark.parametrize("way", WAYS)
def test_a_stream_that_the_engine_breaks_off_is_never_ended_cleanly(
    either: Wired, way: str
) -> None:
    """The client must be able to tell."""
    is_seen = threading.Event()

    def break_off(wire: Wire, _got: Got) -> None:
        wire.send(STREAM_HEAD + chunked(EVENTS[0]))
        assert is_seen.wait(20)
        wire.close()

    either.script(way, break_off)
    with opened(either, way) as client:
        client.head()
        assert client.chunk() == EVENTS[0]
        is_seen.set()
        with pytest.raises(Closed):
            client.chunk()


@pytest.mark.parametrize("way", WAYS)
def test_a_client_that_leaves_is_felt_by_the_engine(either: Wired, way: str) -> None:
    """Its connection closes, which is how vLLM is told to stop."""
    is_closed = threading.Event()

    def wait_for_the_end(wire: Wire, _got: Got) -> None:
        wire.send(STREAM_HEAD + chunked(EVENTS[0]))
        try:
            wire.more()
        except Closed:
            is_closed.set()
            raise

    either.script(way, wait_for_the_end)
    with opened(either, way) as client:
        client.head()
        assert client.chunk() == EVENTS[0]
    assert is_closed.wait(5)
