"""Uploads that stop half-way: refused in time, whoever they are, and cheap while they last."""

import asyncio
import json
import resource
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from time import monotonic, sleep

import pytest

from tests.bench.file_limit import SPARE_FILES, raise_file_limit
from tests.e2e.stack import until
from tests.requests.raw_http import request
from tests.requests.scripted_engine import Got, Wire, hand_over
from tests.requests.transport_h2 import H2Client
from tests.requests.transport_stack import (
    BODY_LIMIT,
    JSON,
    PATH,
    UPLOAD_LIMIT_S,
    WAYS,
    Wired,
    prompt,
)

pytestmark = pytest.mark.e2e

HALF_OPEN = 5000
MOST_KIB_EACH = 150
"""Of Envoy and the worker together: a connection with its request, an ext_proc stream on both
sides, an exchange. Seen: 88."""
IN_FLIGHT = 8 << 20
"""bytes of bodies"""
LARGE = prompt(user="x" * (BODY_LIMIT - len(prompt(user=""))))


def test_a_half_sent_upload_is_refused_in_time(wired: Wired) -> None:
    """408 on every way of sending, and not before request.upload_timeout_s; no engine hears of
    it."""
    length = f"Content-Length: {len(prompt()) + 10}"
    starts = [
        *((way, length, prompt(way)) for way in WAYS),
        *((way, "Transfer-Encoding: chunked", b'5\r\n{"mod\r\n') for way in WAYS),
        *((way, "Transfer-Encoding: chunked", b"ffff\r\n{") for way in WAYS),
        ("pd", length, b""),
        ("pd", "Expect: 100-continue\r\n" + length, b""),
    ]
    began = monotonic()
    clients = [wired.client() for _ in starts]
    for client, (way, how, part) in zip(clients, starts, strict=True):
        client.send(request(f"POST {PATH[way]}", JSON, how, body=part, length=False))
    with H2Client(wired.url) as h2:
        stream = h2.open("POST", "/v1/completions", ("content-type", "application/json"))
        h2.send(stream, b"{", ends=False)
        for client in clients:
            answer = client.answer()
            if answer.status == 100:
                answer = client.answer()
            assert answer.refusal == (408, "upload_timeout")
            client.wire.close()
        late = h2.answer(stream)
        assert late.status == 408
        assert json.loads(late.body)["error"]["code"] == "upload_timeout"
    assert monotonic() - began > UPLOAD_LIMIT_S * 0.9  # Envoy's timers may be early by a little
    assert wired.got == []
    wired.assert_serves()


def test_a_slow_upload_within_the_limit_is_served(wired: Wired) -> None:
    """Byte by byte, spread over half of request.upload_timeout_s."""
    sent = request("POST /v1/completions", JSON, body=prompt())
    with wired.client() as client:
        began = monotonic()
        for i in range(len(sent)):
            # Each at its time: a machine that is late with one is not later with the next.
            sleep(max(0.0, began + UPLOAD_LIMIT_S / 2 * i / len(sent) - monotonic()))
            client.send(sent[i : i + 1])
        assert client.answer().status == 200


@pytest.fixture
def many_files() -> Iterator[None]:
    """This process may hold the clients' ends; Envoy, which holds the others, sees to itself."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    hard, needed = raise_file_limit(), HALF_OPEN + SPARE_FILES
    if hard is not None and hard < needed:
        pytest.skip(f"{needed} open files are needed, the hard limit (ulimit -Hn) is {hard}")
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.fixture(scope="module")
def patient() -> Iterator[Wired]:
    """Waits for uploads for longer than the test takes."""
    http = {"max_body_bytes": BODY_LIMIT, "max_body_bytes_in_flight": IN_FLIGHT}
    made = Wired(request={"upload_timeout_s": 60}, tuning={"http": http})
    yield made
    made.close()


@pytest.mark.usefixtures("many_files")
def test_thousands_of_half_open_uploads_cost_little_and_starve_nobody(patient: Wired) -> None:
    """Memory stays below a bound a request, a good one is served meanwhile, and when the clients
    leave nothing is left of them."""
    processes = [patient.stack.envoy_pid(), *patient.stack.child_pids("worker")]
    before = sum(map(_resident_kib, processes))
    crowd = Crowd(patient.url)
    try:
        crowd.come()
        active = "http.edge.downstream_rq_active"
        until(lambda: patient.stack.envoy_stat(active) >= HALF_OPEN, "all are open", 60)
        patient.assert_serves()
        grown = sum(map(_resident_kib, processes)) - before
        assert grown < HALF_OPEN * MOST_KIB_EACH, f"{grown / HALF_OPEN:.0f} KiB each"
        patient.reset()
    finally:
        crowd.leave()
    until(lambda: patient.stack.envoy_stat("http.edge.downstream_rq_active") == 0, "all left", 30)
    assert patient.got == []
    until(lambda: patient.stack.exchanges() == [], "no exchange is open")
    patient.assert_serves()


def test_prompts_that_wait_for_prefill_take_a_bounded_room(patient: Wired) -> None:
    """429 with retry-after for who declares more than is left of
    tuning.http.max_body_bytes_in_flight, before a byte of it is read, and service again as soon as
    one has left. What is small, or is not held here, is served meanwhile."""
    patient.reset()
    may_answer = threading.Event()

    def waits(wire: Wire, got: Got) -> None:
        assert may_answer.wait(30)
        hand_over(wire, got)

    patient.prefill.leg = waits
    large = request("POST /v1/completions", JSON, body=LARGE)
    head = large[: large.index(b"\r\n\r\n") + 4]
    try:
        with ExitStack() as stack:
            waiting = [
                stack.enter_context(patient.client()) for _ in range(IN_FLIGHT // BODY_LIMIT)
            ]
            for client in waiting:
                client.send(large)
            until(lambda: len(patient.prefill.got) == len(waiting), "all wait for prefill")
            refused = patient.ask(head)
            assert refused.refusal == (429, "too_many_body_bytes")
            assert refused.get("retry-after") == "1"
            assert patient.post("single").status == 200
            waiting[0].wire.close()
            until(lambda: len(patient.stack.exchanges()) < len(waiting), "one has left")
            client = stack.enter_context(patient.client())
            client.send(large)
            may_answer.set()
            assert client.answer().status == 200
    finally:
        may_answer.set()
    until(lambda: patient.stack.exchanges() == [], "no exchange is open")
    patient.assert_serves()


def test_who_declares_much_and_sends_nothing_keeps_nobody_out(patient: Wired) -> None:
    """However many there are: what they declare is not what they hold."""
    patient.reset()
    starts = (f"Content-Length: {BODY_LIMIT}", "Transfer-Encoding: chunked")
    with ExitStack() as stack:
        for i in range(4 * IN_FLIGHT // BODY_LIMIT):
            client = stack.enter_context(patient.client())
            client.send(request("POST /v1/completions", JSON, starts[i % 2], length=False))
        active = "http.edge.downstream_rq_active"
        until(
            lambda: patient.stack.envoy_stat(active) >= 4 * IN_FLIGHT // BODY_LIMIT, "all are here"
        )
        patient.assert_serves()
        assert patient.post("pd", body=LARGE).status == 200
    until(lambda: patient.stack.exchanges() == [], "no exchange is open")


def _resident_kib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1])


class Crowd:
    """Clients that each send the head of a request and the start of its body, and wait."""

    def __init__(self, url: str) -> None:
        host, _, port = url.removeprefix("http://").partition(":")
        self._address = (host, int(port))
        self._are_here, self._may_leave = threading.Event(), asyncio.Event()
        self._fault: OSError | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=[self._stay()])
        self._thread.start()

    def come(self) -> None:
        """Once all are there. Raises the OSError of the first that could not connect."""
        assert self._are_here.wait(60), "not all could connect in 60 s"
        if self._fault is not None:
            raise self._fault

    def leave(self) -> None:
        self._loop.call_soon_threadsafe(self._may_leave.set)
        self._thread.join(60)
        self._loop.close()

    async def _stay(self) -> None:
        half = request("POST /v1/completions", JSON, "Content-Length: 100", body=b"{", length=False)
        writers: list[asyncio.StreamWriter] = []
        while len(writers) < HALF_OPEN and self._fault is None:
            opened = (asyncio.open_connection(*self._address) for _ in range(250))
            for one in await asyncio.gather(*opened, return_exceptions=True):
                if isinstance(one, OSError):
                    self._fault = one
                else:
                    one[1].write(half)
                    writers.append(one[1])
        self._are_here.set()
        await self._may_leave.wait()
        for writer in writers:
            writer.close()
        await asyncio.gather(*(w.wait_closed() for w in writers), return_exceptions=True)
