"""The HTTP/2 carrier against a client of the `h2` library, on both event loops."""

import pytest
from h2.errors import ErrorCodes
from h2.settings import SettingCodes
from http2_peer import (
    LOOPS,
    Heard,
    Peer,
    Serving,
    echo,
    eventually,
    message,
    messages,
    pattern,
    sends,
    served,
)

from sidecar.edge.http2_server import Http2Server

MIB = 1 << 20


serving = pytest.fixture(params=LOOPS)(served)


def test_messages_there_and_back(serving: Serving) -> None:
    """In their order, the empty one too; the end is gRPC's OK, and the handler hears no other."""
    sent = [b"one", b"", b"x" * 70_000, b"end"]
    with Peer(serving.path) as peer:
        stream = peer.open()
        for data in sent:
            peer.send(stream, message(data))
        reply = peer.over(stream)
    assert messages(reply.data) == sent
    assert reply.headers == {":status": "200", "content-type": "application/grpc"}
    assert reply.is_good
    (heard,) = serving.calls
    assert (heard.messages, heard.closed) == (sent, 0)


def test_an_end_before_any_reply(serving: Serving) -> None:
    """Headers and trailers are one then."""
    serving.react = lambda heard, _data: heard.call.end()
    with Peer(serving.path) as peer:
        reply = peer.over(peer.ask(b"x"))
    assert reply.is_good
    assert reply.headers == {
        ":status": "200", "content-type": "application/grpc", "grpc-status": "0",
    }  # fmt: skip
    assert not reply.data


@pytest.mark.parametrize("way", ["with headers", "with data", "with empty data"])
def test_the_client_closes_its_half(serving: Serving, way: str) -> None:
    """The messages are heard, then that it left, once; the call ends with OK."""
    with Peer(serving.path) as peer:
        stream = peer.open(ends=way == "with headers")
        if way != "with headers":
            peer.send(stream, message(b"a"), ends=way == "with data")
        if way == "with empty data":
            peer.send(stream, b"", ends=True)
        assert peer.over(stream).is_good
    (heard,) = serving.calls
    assert heard.messages == ([] if way == "with headers" else [b"a"])
    assert heard.closed == 1


def test_a_half_that_closes_while_a_reply_is_pending(serving: Serving) -> None:
    """What was sent before still arrives whole."""
    serving.react = lambda heard, data: heard.call.send(data)
    with Peer(serving.path, initial_window_size=10) as peer:
        stream = peer.open()
        peer.send(stream, message(pattern(5000)), ends=True)
        reply = peer.over(stream)
    assert messages(reply.data) == [pattern(5000)]
    assert reply.is_good
    assert serving.calls[0].closed == 1


@pytest.mark.parametrize("moment", ["at once", "half a message", "a reply is pending", "ended"])
def test_the_client_resets(serving: Serving, moment: str) -> None:
    """Its handler hears it once, unless the call was ended by us; nothing of it is kept, and the
    connection goes on."""
    with Peer(serving.path, initial_window_size=0) as peer:
        stream = peer.open()
        if moment == "half a message":
            peer.send(stream, message(b"abc")[:6])
        elif moment != "at once":
            peer.send(stream, message(b"end" if moment == "ended" else b"x"))
            eventually(lambda: serving.held() == (1, 1, 1))
        peer.h2.reset_stream(stream, ErrorCodes.CANCEL)
        peer.flush()
        eventually(lambda: serving.calls and serving.held() == (1, 0, 0))
        assert serving.calls[0].closed == (0 if moment == "ended" else 1)
        peer.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 1000})
        assert peer.over(peer.ask(b"end")).is_good


def test_nothing_is_heard_after_our_end(serving: Serving) -> None:
    """Whatever the client still sends: in the same frame, while the reply is pending, and its
    leaving."""
    with Peer(serving.path, initial_window_size=0) as peer:
        stream = peer.open()
        peer.send(stream, message(b"end") + message(b"behind"))
        eventually(lambda: serving.held() == (1, 1, 1))
        peer.send(stream, message(b"later"), ends=True)
        peer.settle()
        peer.h2.increment_flow_control_window(1000, stream)
        peer.flush()
        assert peer.over(stream).is_good
    (heard,) = serving.calls
    assert (heard.messages, heard.closed) == ([b"end"], 0)


@pytest.mark.parametrize("size", [0, 1, 16379, 16380, 65530, 65531, 4 * MIB, 70 * MIB])
def test_replies_arrive_byte_exact(serving: Serving, size: int) -> None:
    """Through the protocol's own windows, of 64 KiB for the connection too."""
    data = pattern(size)
    serving.react = sends(data)
    with Peer(serving.path) as peer:
        reply = peer.over(peer.ask(b"x"))
    assert messages(reply.data) == [data]
    assert reply.is_good


@pytest.mark.parametrize("window", [9_999, 100_000], ids=["of the call", "of the connection"])
def test_many_small_replies_spend_the_windows(serving: Serving, window: int) -> None:
    """`h2` fails at a byte that is more than it allowed."""

    def react(heard: Heard, _data: bytes) -> None:
        for number in range(300):
            heard.call.send(b"%01000d" % number)
        heard.call.end()

    serving.react = react
    with Peer(serving.path, initial_window_size=window) as peer:
        stream = peer.ask(b"x")
        assert peer.over(stream).is_good
    assert messages(peer.replies[stream].data) == [b"%01000d" % number for number in range(300)]


@pytest.mark.parametrize("window", range(9))
@pytest.mark.parametrize("size", [0, 1, 3])
def test_windows_of_a_few_bytes(serving: Serving, window: int, size: int) -> None:
    """A reply of 0 bytes has a length before it, which may wait too; none is stuck."""
    serving.react = sends(b"abc"[:size])
    with Peer(serving.path, initial_window_size=window) as peer:
        peer.takes = False
        stream = peer.ask(b"x")
        while len(peer.replies[stream].data) < 5 + size:
            got = len(peer.replies[stream].data)
            if got >= window:
                peer.h2.increment_flow_control_window(1, stream)
                window += 1
                peer.flush()
            peer.receive()
        assert peer.over(stream).is_good
        assert messages(peer.replies[stream].data) == [b"abc"[:size]]


def test_a_large_request_in_many_frames(serving: Serving) -> None:
    """70 MB in one message, between messages of other calls."""
    data = pattern(70 * MIB)
    serving.react = lambda heard, _data: heard.call.end()
    with Peer(serving.path) as peer:
        large = peer.open()
        peer.send(large, message(data)[: 30 * MIB])
        assert peer.over(peer.ask(b"small")).is_good
        peer.send(large, message(data)[30 * MIB :])
        assert peer.over(large).is_good
    assert serving.calls[0].messages == [data]


def test_replies_take_turns(serving: Serving) -> None:
    """With a window that lets one frame through, each gets as much of it as the other, and a small
    one does not wait for a large one."""
    serving.react = lambda heard, data: (heard.call.send(pattern(int(data))), heard.call.end())[0]
    with Peer(serving.path, initial_window_size=2 * MIB) as peer:
        peer.takes = False
        large = [peer.ask(b"1000000"), peer.ask(b"1000000")]
        eventually(lambda: serving.held() == (1, 2, 2))
        small = peer.ask(b"100")
        eventually(lambda: serving.held() == (1, 3, 3))
        for _ in range(20):
            peer.h2.increment_flow_control_window(16384)
            peer.flush()
            peer.receive()
        assert len(peer.replies[small].data) == 105, "the small one still waits"
        sizes = [len(peer.replies[stream].data) for stream in large]
        # The first had the 64 KiB that were there before the second came.
        assert sizes[1] >= 7 * 16384, sizes
        del peer.order[:]
        peer.h2.increment_flow_control_window(4 * MIB)
        peer.flush()
        peer.until(lambda: len(peer.order) > 20)
        assert [peer.order[:20].count(stream) for stream in large] == [10, 10]
        assert all(peer.over(stream).is_good for stream in (*large, small))
        assert all(messages(peer.replies[stream].data) == [pattern(1000000)] for stream in large)


def test_a_window_below_what_was_sent(serving: Serving) -> None:
    """Lowered while a reply is pending it is negative: nothing comes until it is positive again."""
    serving.react = sends(pattern(1000))
    with Peer(serving.path, initial_window_size=400) as peer:
        peer.takes = False
        stream = peer.ask(b"x")
        reply = peer.replies[stream]
        peer.until(lambda: len(reply.data) == 400)
        peer.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 100})
        peer.h2.increment_flow_control_window(300, stream)  # of 100 - 400: still none
        peer.flush()
        peer.settle()
        assert len(reply.data) == 400
        peer.h2.increment_flow_control_window(7, stream)
        peer.flush()
        peer.until(lambda: len(reply.data) == 407)
        peer.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 5000})
        peer.flush()
        assert peer.over(stream).is_good
    assert messages(reply.data) == [pattern(1000)]


def test_frames_are_as_large_as_the_client_takes(serving: Serving) -> None:
    """100,000 bytes are one frame to whom allows it."""
    serving.react = sends(pattern(100_000))
    with Peer(serving.path, initial_window_size=MIB, max_frame_size=MIB) as peer:
        peer.h2.increment_flow_control_window(MIB)
        stream = peer.ask(b"x")
        assert peer.over(stream).is_good
    assert messages(peer.replies[stream].data) == [pattern(100_000)]
    assert len(peer.order) == 1


@pytest.mark.parametrize("size", [0, 100, 4096, 65536])
def test_header_tables_of_any_size(serving: Serving, size: int) -> None:
    """A client that allows a smaller table than by default must be told that ours is no larger."""
    with Peer(serving.path, header_table_size=size) as peer:
        assert peer.over(peer.ask(b"end")).is_good
        peer.h2.update_settings({SettingCodes.HEADER_TABLE_SIZE: 0})
        assert peer.over(peer.ask(b"end")).is_good


def test_ten_thousand_calls_leave_nothing(serving: Serving) -> None:
    """Ended by us, by the client's half, by a reset, in turn."""
    with Peer(serving.path) as peer:
        for round_ in range(100):
            streams = [peer.open() for _ in range(100)]
            for number, stream in enumerate(streams):
                if number % 3 == 2:
                    peer.h2.reset_stream(stream)
                else:
                    last = b"end" if number % 3 else b"x"
                    peer.send(stream, message(last), ends=last == b"x")
            peer.flush()
            for number, stream in enumerate(streams):
                if number % 3 != 2:
                    assert peer.over(stream).is_good, round_
        eventually(lambda: serving.held() == (1, 0, 0))
    eventually(lambda: serving.held() == (0, 0, 0))
    assert len(serving.calls) == 10_000
    assert sum(heard.closed for heard in serving.calls) == 6_700


def test_a_lost_connection(serving: Serving) -> None:
    """Every running call hears it once, also when one of them fails at it."""
    with Peer(serving.path) as peer:
        for _ in range(3):
            peer.ask(b"x")
        eventually(lambda: len([one for one in serving.calls if one.messages]) == 3)
        middle = serving.calls[1]
        serving.do(lambda: setattr(middle, "on_closed", fails))
    eventually(lambda: serving.held() == (0, 0, 0))
    assert [heard.closed for heard in serving.calls] == [1, 0, 1]
    assert [heard.call.is_ended for heard in serving.calls] == [True] * 3


def fails(*_: object) -> None:
    raise RuntimeError("a bug")


@pytest.mark.parametrize("where", ["accept", "on_message", "on_closed"])
def test_a_bug_costs_its_call_alone(serving: Serving, where: str) -> None:
    """The call is reset, and what else runs on the connection goes on."""
    with Peer(serving.path) as peer:
        other = peer.open()
        eventually(lambda: serving.calls)
        if where == "accept":
            serving.do(lambda: setattr(serving.server, "accept", fails))
        elif where == "on_message":
            serving.react = lambda _heard, data: fails() if data == b"bug" else echo(_heard, data)
        broken = peer.open()
        if where == "on_closed":
            eventually(lambda: len(serving.calls) == 2)
            serving.do(lambda: setattr(serving.calls[1], "on_closed", fails))
            peer.send(broken, b"", ends=True)
            assert peer.over(broken).is_good
        else:
            if where == "on_message":
                peer.send(broken, message(b"bug") + message(b"behind"))
            assert peer.over(broken).reset == ErrorCodes.INTERNAL_ERROR
        peer.send(other, message(b"end"))
        assert peer.over(other).is_good
    if where == "on_message":
        assert (serving.calls[1].messages, serving.calls[1].closed) == ([b"bug"], 1)


def test_a_stale_path_is_replaced(serving: Serving) -> None:
    """A successor listens where its predecessor did, whose calls go on."""
    with Peer(serving.path) as peer:
        stream = peer.open()
        eventually(lambda: serving.calls)
        successor = Http2Server(serving.accept)
        serving.run(successor.listen(serving.path))
        with Peer(serving.path) as other:
            assert other.over(other.ask(b"end")).is_good
        peer.send(stream, message(b"end"))
        assert peer.over(stream).is_good
        serving.run(successor.close(0))
