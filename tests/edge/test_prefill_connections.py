"""The prefill client's connections: which are used again, and that none is left behind."""

import asyncio
import gc
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
from polling import until
from prefill_peer import OK, Line, Peer, leg, on_both_loops, open_files

from sidecar.edge import prefill_client
from sidecar.edge.prefill_client import End, PrefillClient
from sidecar.exchange.events import PrefillAnswered, PrefillFailed
from sidecar.exchange.reasons import Reason

NOTHING = "<PrefillClient: 0 legs, 0 idle>"
LARGE = 70 << 20


@asynccontextmanager
async def a_client() -> AsyncIterator[PrefillClient]:
    client = PrefillClient(5.0)
    try:
        yield client
    finally:
        await client.close()


def outcome(end: End) -> object:
    return end.reason if isinstance(end, PrefillFailed) else (end.status, end.body)


@on_both_loops
async def test_a_connection_that_was_closed_while_idle_is_not_used() -> None:
    """Nor is the leg that comes next failed for it."""
    async with Peer() as peer, a_client() as client:
        assert outcome(await client.send(leg(peer.url))) == (200, b"ok")
        peer.lines[0].transport.close()
        await until(lambda: peer.lines[0].is_lost)
        await asyncio.sleep(0)
        assert outcome(await client.send(leg(peer.url))) == (200, b"ok")
        assert len(peer.lines) == 2


@on_both_loops
async def test_a_request_that_met_the_closing_is_reset_and_not_sent_again() -> None:
    """It was written: the engine may have run it."""

    def once(line: Line) -> None:
        if len(line.requests) == 1:
            line.say(OK)
        else:
            line.transport.abort()

    async with Peer(once) as peer, a_client() as client:
        assert outcome(await client.send(leg(peer.url))) == (200, b"ok")
        assert outcome(await client.send(leg(peer.url))) is Reason.PREFILL_RESET
        assert [len(line.requests) for line in peer.lines] == [2]


@on_both_loops
async def test_what_nobody_asked_for_closes_an_idle_connection() -> None:
    """It would be the answer to the next request."""
    async with Peer() as peer, a_client() as client:
        await client.send(leg(peer.url))
        peer.lines[0].say(OK)
        await until(lambda: peer.lines[0].is_lost)
        assert outcome(await client.send(leg(peer.url))) == (200, b"ok")
        assert len(peer.lines) == 2


@pytest.mark.parametrize(
    "said",
    [
        OK + b"HTTP/1.1 500 No\r\nx-two: 1\r\ncontent-length: 0\r\n\r\n",
        OK + b"HTTP/1.1 500 No\r\nx-two: 1\r\n",
        OK + b"bye",
        OK.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"),
        OK.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n") + b"bye",
        OK.replace(b"1.1", b"1.0"),
    ],
    ids=["two answers", "one and a half", "more than its length", "close", "close and more", "1.0"],
)
@on_both_loops
async def test_an_answer_can_be_the_last_of_its_connection(said: bytes) -> None:
    """It is an answer all the same, and nothing of what follows is in it."""
    async with Peer(said) as peer, a_client() as client:
        for _ in range(2):
            end = await client.send(leg(peer.url))
            assert outcome(end) == (200, b"ok")
            assert isinstance(end, PrefillAnswered)
            assert end.headers == {}
        assert [len(line.requests) for line in peer.lines] == [1, 1]
        await until(lambda: not peer.open_lines, "the client's closing")


@on_both_loops
async def test_an_answer_without_a_length_ends_with_its_connection() -> None:
    """And is whole only where that ended well."""

    def ends(line: Line) -> None:
        line.say(b"HTTP/1.1 200 OK\r\n\r\no", b"k")
        line.transport.close()

    async with Peer(ends) as peer, a_client() as client:
        assert outcome(await client.send(leg(peer.url))) == (200, b"ok")


@on_both_loops
async def test_an_answer_that_comes_before_the_body_was_sent_is_given() -> None:
    """At once, and the connection, on which nothing can follow, is closed; also where the engine
    closes it first, with unread bytes, which resets it."""

    def early(line: Line) -> None:
        line.transport.pause_reading()
        line.say(OK.replace(b"200 OK", b"413 Large"))

    def early_and_gone(line: Line) -> None:
        early(line)
        line.transport.close()

    for does in (early, early_and_gone):
        async with Peer(on_head=does) as peer, a_client() as client:
            body = bytes(LARGE)
            assert outcome(await client.send(leg(peer.url, body))) == (413, b"ok")
            assert repr(client) == NOTHING
            for line in peer.open_lines:
                line.transport.resume_reading()
            await until(lambda peer=peer: not peer.open_lines)


@on_both_loops
async def test_an_engine_that_ends_while_it_is_sent_to_is_noticed() -> None:
    """At once: not when it has read a body that it reads no more."""

    def ends(line: Line) -> None:
        line.transport.pause_reading()
        line.transport.write_eof()

    async with Peer(on_head=ends) as peer, a_client() as client:
        end = await client.send(leg(peer.url, bytes(LARGE), timeout_s=20))
        assert outcome(end) is Reason.PREFILL_RESET


@on_both_loops
async def test_an_engine_that_reads_nothing_costs_no_more_than_the_limit() -> None:
    """Timeout, and what was not sent is dropped."""
    async with Peer(on_head=lambda line: line.transport.pause_reading()) as peer, a_client() as c:
        end = await c.send(leg(peer.url, bytes(LARGE), timeout_s=0.3))
        assert outcome(end) is Reason.PREFILL_TIMEOUT
        assert 0.25 < end.seconds < 5
        assert repr(c) == NOTHING
        peer.lines[0].transport.resume_reading()
        await until(lambda: not peer.open_lines)


@on_both_loops
async def test_bodies_of_any_size_pass() -> None:
    """To the byte, both ways."""
    body = bytes(range(256)) * (LARGE >> 8)
    said = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % LARGE

    async with Peer(lambda line: line.say(said, body)) as peer, a_client() as client:
        end = await client.send(leg(peer.url, body, timeout_s=60))
        assert isinstance(end, PrefillAnswered)
        assert end.body == body
        (request,) = peer.requests
        assert request.endswith(body)
        assert repr(client) == "<PrefillClient: 0 legs, 1 idle>"


@pytest.mark.parametrize(
    "speaks", [lambda line: line.say(b"220 mail\r\n"), lambda line: line.transport.abort()]
)
@on_both_loops
async def test_whoever_speaks_or_leaves_first_is_no_engine(speaks: object) -> None:
    """Reset, and soon: also when it did so before the request was written."""
    async with Peer(on_line=speaks, on_request=lambda _: None) as peer, a_client() as client:  # type: ignore[arg-type]
        ends = await asyncio.gather(*(client.send(leg(peer.url, timeout_s=60)) for _ in range(100)))
        assert {outcome(end) for end in ends} == {Reason.PREFILL_RESET}
        assert max(end.seconds for end in ends) < 20
        assert repr(client) == NOTHING


@pytest.mark.parametrize("phase", ["sending", "waiting", "half an answer"])
@on_both_loops
async def test_a_cancelled_leg_closes_its_connection(phase: str) -> None:
    """Whatever it was at; nothing of it is left."""
    begun = asyncio.Event()

    def stops(line: Line) -> None:
        if phase == "sending":
            line.transport.pause_reading()
        begun.set()

    def starts(line: Line) -> None:
        if phase == "half an answer":
            line.say(OK[:-1])

    async with Peer(starts, on_head=stops) as peer, a_client() as client:
        sent = client.send(leg(peer.url, bytes(LARGE if phase == "sending" else 9)))
        async with asyncio.timeout(10):
            await begun.wait()
        if phase == "half an answer":
            (under_way,) = client._legs
            await until(lambda: under_way._status)
        sent.cancel()
        await asyncio.wait([sent])
        assert repr(client) == NOTHING
        peer.lines[0].transport.resume_reading()
        await until(lambda: not peer.open_lines, "the client's closing")


@on_both_loops
async def test_a_leg_cancelled_at_any_moment_leaves_nothing() -> None:
    """Between connecting and the answer's end there is no round of the loop that would."""
    async with Peer() as peer, a_client() as client:
        before = open_files()
        for rounds in range(16):
            sent = [client.send(leg(peer.url)) for _ in range(20)]
            for _ in range(rounds):
                await asyncio.sleep(0)
            for one in sent:
                one.cancel()
            await asyncio.gather(*sent, return_exceptions=True)
        assert repr(client).startswith("<PrefillClient: 0 legs")
        await client.close()
        await until(lambda: open_files() == before, "every socket closed", 20)
        assert repr(client) == NOTHING


@on_both_loops
async def test_a_leg_that_was_cancelled_is_not_sent_any_more() -> None:
    """Though its connection is made in the same round of the loop."""
    async with Peer() as peer:
        for rounds in range(12):
            client = PrefillClient(5.0)
            sent = client.send(leg(peer.url))
            for _ in range(rounds):
                await asyncio.sleep(0)
            under_way = list(client._legs)
            was_written = not under_way or under_way[0]._connection is not None
            sent.cancel()
            await asyncio.wait([sent])
            await client.close()
            await until(lambda: not peer.open_lines)
            assert len(peer.requests) <= was_written, rounds
            peer.lines.clear()


@on_both_loops
async def test_closing_ends_legs_of_every_phase() -> None:
    """When it has returned there is no socket, no leg and no look-up any more."""

    async def never(_name: str) -> list[str]:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            for _ in range(5):
                await asyncio.sleep(0)
        return []

    before = open_files()
    client = PrefillClient(20.0, never)
    quiet = Peer(lambda _: None, on_head=lambda line: line.transport.pause_reading())
    half = Peer(OK[:-1])
    async with Peer() as peer, quiet, half:
        await client.send(leg(peer.url))
        listening = open_files() - 2
        sent = [
            client.send(leg("http://name:1/x")),
            client.send(leg(quiet.url, bytes(LARGE))),
            client.send(leg(quiet.url)),
            client.send(leg(half.url)),
        ]
        await until(lambda: len(quiet.lines) == 2 and half.requests)
        sent.append(client.send(leg(peer.url)))
        sent.append(client.send(leg(peer.url)))
        assert repr(client) == "<PrefillClient: 6 legs, 0 idle>"
        open_before = open_files()
        await client.close()
        assert open_files() <= open_before - 4, "two to the quiet, one each to the others"
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert repr(client) == NOTHING
        assert all(one.cancelled() for one in sent)
        for line in quiet.lines:
            line.transport.resume_reading()
        await until(lambda: open_files() == listening, "every socket closed")
    await until(lambda: open_files() <= before + 1)  # the loop's own


@on_both_loops
async def test_closing_leaves_no_socket_to_the_loops_next_round() -> None:
    """There may be none: of a leg that waits, and of an idle connection."""
    for does in (lambda _: None, OK):
        async with Peer(does) as peer:
            client = PrefillClient(5.0)
            sent = client.send(leg(peer.url))
            await until(
                lambda does=does, peer=peer, sent=sent: (
                    sent.done() or (does != OK and peer.requests)
                )
            )
            open_before = open_files()
            await client.close()
            assert open_files() < open_before
            await asyncio.wait([sent])


@on_both_loops
async def test_idle_connections_are_closed_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when nobody asks again."""
    monkeypatch.setattr(prefill_client, "IDLE_S", 0.2)
    async with Peer() as peer, a_client() as client:
        await asyncio.gather(*(client.send(leg(peer.url)) for _ in range(5)))
        assert repr(client) == "<PrefillClient: 0 legs, 5 idle>"
        await until(lambda: not peer.open_lines, "the client's closing")
        assert repr(client) == NOTHING
        assert outcome(await client.send(leg(peer.url))) == (200, b"ok")
        await until(lambda: not peer.open_lines, "the client's closing, once more")


@on_both_loops
async def test_a_connection_that_was_idle_too_long_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Though it was not closed yet."""
    async with Peer() as peer, a_client() as client:
        await client.send(leg(peer.url))
        monkeypatch.setattr(prefill_client, "IDLE_S", 0.0)
        await client.send(leg(peer.url))
        assert [len(line.requests) for line in peer.lines] == [1, 1]
        await until(lambda: peer.lines[0].is_lost)


@on_both_loops
async def test_thousands_of_legs_leave_nothing() -> None:
    """5,000, 500 at once: each answered, no socket and no timer kept beyond the idle ones."""
    async with Peer() as peer, a_client() as client:
        before = open_files()
        for _ in range(10):
            sent = [client.send(leg(peer.url, timeout_s=60)) for _ in range(500)]
            assert {outcome(end) for end in await asyncio.gather(*sent)} == {(200, b"ok")}
        assert repr(client) == "<PrefillClient: 0 legs, 500 idle>"
        assert len(peer.lines) == 500
        await client.close()
        await until(lambda: open_files() == before, "every socket closed")


@on_both_loops
async def test_an_idle_connection_keeps_no_body() -> None:
    """A prompt can be of 70 MB, and its budget is given back when the exchange is over."""
    async with Peer() as peer, a_client() as client:
        body = bytes(99)
        start = leg(peer.url, body)
        gc.collect()
        gc.disable()
        try:
            before = sys.getrefcount(body)
            assert outcome(await client.send(msgspec.structs.replace(start))) == (200, b"ok")
            assert repr(client) == "<PrefillClient: 0 legs, 1 idle>"
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert sys.getrefcount(body) == before
        finally:
            gc.enable()


@on_both_loops
async def test_a_header_with_a_line_break_is_not_sent() -> None:
    """It would be two, or a second request: ValueError, and nobody was connected to."""
    async with Peer() as peer, a_client() as client:
        for value in ("a\r\nb: c", "a\nb", "a\rb", "a\0b", "a\r\n\r\nPOST / HTTP/1.1"):
            with pytest.raises(ValueError, match="line break"):
                await client.send(leg(peer.url, headers={"x": value}))
        assert repr(client) == NOTHING
        assert outcome(await client.send(leg(peer.url, headers={"x": "a é"}))) == (200, b"ok")
        (request,) = peer.requests
        assert b"\r\nx: a \xe9\r\n" in request, "the client's bytes, as decode gets them"
