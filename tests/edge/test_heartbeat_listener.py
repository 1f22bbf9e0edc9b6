"""The registration door against real sockets: good peers, broken ones, and floods of both."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator

import msgspec
import pytest
import pytest_asyncio
import zmq
from polling import until

from sidecar.edge.heartbeat_listener import MAX_FRAME_BYTES, MESSAGES_A_TURN, HeartbeatListener
from sidecar.errors import HeartbeatError, StartError
from sidecar.routing.instance import Instance

DEADLINE_S = 10.0


def beat(port: int = 8000, host: str = "127.0.0.1") -> bytes:
    return msgspec.msgpack.encode(
        {
            "type": "P",
            "http_address": f"{host}:{port}",
            "zmq_address": f"host:{host},handshake:6301,notify:61005",
            "dp_size": 8,
            "tp_size": 1,
            "transfer_mode": "WRITE",
        }
    )


class Door:
    """A listener and all that it reported."""

    def __init__(self, listen: str = "tcp://127.0.0.1:0", allow: tuple[str, ...] = ()) -> None:
        self.heard: list[tuple[Instance, str]] = []
        self.rejected: list[str] = []
        self.raises: Exception | None = None
        self.listener = HeartbeatListener(
            listen, self.hear, lambda reason, _: self.rejected.append(reason), allow
        )

    def hear(self, instance: Instance, sender: str) -> None:
        if self.raises is not None:
            raise self.raises
        self.heard.append((instance, sender))

    def addresses(self) -> set[str]:
        return {instance.address for instance, _ in self.heard}

    @property
    def url(self) -> str:
        return self.listener.bound_address

    @property
    def tcp(self) -> tuple[str, int]:
        host, _, port = self.url.removeprefix("tcp://").rpartition(":")
        return host, int(port)


@pytest_asyncio.fixture
async def door() -> AsyncIterator[Door]:
    door = Door()
    door.listener.bind()
    door.listener.start()
    yield door
    await door.listener.close()


@pytest.fixture
def engines() -> Iterator[Callable[[str], zmq.Socket]]:
    """Makes DEALERs set up as vLLM's heartbeat process does."""
    context, dealers = zmq.Context(), []

    def connect(url: str) -> zmq.Socket:
        dealer = context.socket(zmq.DEALER)
        dealers.append(dealer)
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.setsockopt(zmq.SNDTIMEO, 1000)
        dealer.setsockopt(zmq.IPV6, 1)
        dealer.connect(url)
        return dealer

    yield connect
    context.destroy(linger=0)


@pytest.mark.asyncio
async def test_a_heartbeat_is_heard_with_its_sender(door: Door, engines: Callable) -> None:
    engines(door.url).send(beat())
    await until(lambda: bool(door.heard))
    instance, sender = door.heard[0]
    assert (instance.address, instance.dp_size, sender) == ("127.0.0.1:8000", 8, "127.0.0.1")
    assert door.listener.heard == 1


@pytest.mark.asyncio
async def test_bad_messages_are_counted_and_good_ones_still_heard(
    door: Door, engines: Callable
) -> None:
    engine = engines(door.url)
    engine.send_multipart([b"", beat()])
    engine.send_multipart([b"x"] * 5)
    engine.send(b"")
    engine.send(b"\xc1garbage")
    engine.send(msgspec.msgpack.encode({"type": "HELLO"}))
    engine.send(msgspec.msgpack.encode(["not a map"]))
    engine.send(beat(port=0))
    engine.send(b"x" * 20_000)
    engine.send(beat())
    await until(lambda: bool(door.heard))
    counts = {reason: count for reason, count in door.listener.counts.items() if count}
    assert counts == {"frames": 2, "msgpack": 2, "shape": 1, "address": 1, "size": 1}
    assert sorted(door.rejected) == sorted(r for r, n in counts.items() for _ in range(n))


@pytest.mark.asyncio
async def test_a_plain_router_peer_of_one_frame_is_a_message_of_two(
    door: Door, engines: Callable
) -> None:
    """A PUSH peer is no DEALER: ZMTP refuses it, and nobody else notices."""
    context = zmq.Context()
    try:
        push = context.socket(zmq.PUSH)
        push.setsockopt(zmq.LINGER, 0)
        push.connect(door.url)
        engines(door.url).send(beat())
        await until(lambda: bool(door.heard))
    finally:
        context.destroy(linger=0)


@pytest.mark.asyncio
async def test_plain_tcp_garbage_stops_nothing(door: Door, engines: Callable) -> None:
    connections = [socket.create_connection(door.tcp) for _ in range(20)]
    try:
        for i, connection in enumerate(connections):
            connection.sendall(
                [b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 500, b"\xff" * 9, b"\xff"][i % 4]
            )
            if i % 2:
                connection.close()
        engines(door.url).send(beat())
        await until(lambda: bool(door.heard))
    finally:
        for connection in connections:
            connection.close()


@pytest.mark.asyncio
async def test_an_oversized_frame_costs_its_sender_the_connection_only(
    door: Door, engines: Callable
) -> None:
    bad, good = engines(door.url), engines(door.url)
    for _ in range(3):
        bad.send(b"x" * (MAX_FRAME_BYTES + 1))
    good.send(beat(8001))
    await until(lambda: door.addresses() == {"127.0.0.1:8001"})
    # libzmq reconnects by itself, so a peer that mends its ways is heard again.
    async with asyncio.timeout(DEADLINE_S):
        while "127.0.0.1:8002" not in door.addresses():
            bad.send(beat(8002))
            await asyncio.sleep(0.05)


@pytest.mark.asyncio
async def test_a_flood_leaves_the_loop_its_turns(door: Door, engines: Callable) -> None:
    """Ten engines flush what they queued while the sidecar was away; one of them sends rubbish."""
    most_a_turn, before = 0, 0

    def flood() -> None:
        for i in range(10):
            engine = engines(door.url)
            engine.setsockopt(zmq.SNDTIMEO, 10_000)
            for _ in range(1000):
                engine.send(b"\xc1" if i == 9 else beat(8000 + i))

    sending = asyncio.create_task(asyncio.to_thread(flood))
    async with asyncio.timeout(60):
        while door.listener.heard < 9000 or len(door.rejected) < 1000:
            await asyncio.sleep(0)
            read = len(door.heard) + len(door.rejected)
            most_a_turn, before = max(most_a_turn, read - before), read
    await sending
    assert door.addresses() == {f"127.0.0.1:{8000 + i}" for i in range(9)}
    assert most_a_turn <= MESSAGES_A_TURN


@pytest.mark.asyncio
async def test_engines_are_heard_again_after_a_restart_of_the_listener(engines: Callable) -> None:
    first = Door()
    first.listener.bind()
    first.listener.start()
    url = first.url
    connected = [engines(url) for _ in range(5)]
    for i, engine in enumerate(connected):
        engine.send(beat(8000 + i))
    await until(lambda: len(first.addresses()) == 5)
    await first.listener.close()
    await first.listener.close()
    for engine in connected:
        for _ in range(200):
            engine.send(beat(8000 + connected.index(engine)))
    second = Door(url)
    second.listener.bind()
    second.listener.start()
    try:
        await until(lambda: len(second.addresses()) == 5)
    finally:
        await second.listener.close()


@pytest.mark.asyncio
async def test_a_callback_that_fails_stops_nothing(door: Door, engines: Callable) -> None:
    engine = engines(door.url)
    door.raises = HeartbeatError("full", "4096 instances")
    engine.send(beat())
    await until(lambda: door.rejected == ["full"])
    door.raises = RuntimeError("a bug")
    engine.send(beat())
    engine.send(b"\xc1")
    await until(lambda: door.rejected == ["full", "msgpack"])
    door.raises = None
    engine.send(beat())
    await until(lambda: bool(door.heard))


@pytest.mark.asyncio
async def test_an_observer_of_rejections_that_fails_stops_nothing(engines: Callable) -> None:
    def fail(_reason: str, _detail: str) -> None:
        raise RuntimeError("a bug")

    heard: list[Instance] = []
    listener = HeartbeatListener("tcp://127.0.0.1:0", lambda i, _: heard.append(i), fail)
    listener.bind()
    listener.start()
    engine = engines(listener.bound_address)
    engine.send(b"\xc1")
    engine.send(beat())
    await until(lambda: bool(heard))
    assert listener.counts["msgpack"] == 1
    await listener.close()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("allow", "is_heard"),
    [(("127.0.0.0/8",), True), (("10.0.0.0/8", "127.0.0.1"), True), (("10.0.0.0/8",), False)],
)
async def test_only_allowed_networks_register(
    allow: tuple[str, ...], is_heard: bool, engines: Callable
) -> None:
    door = Door(allow=allow)
    door.listener.bind()
    door.listener.start()
    try:
        engines(door.url).send(beat())
        await until(lambda: bool(door.heard or door.rejected))
        assert door.rejected == ([] if is_heard else ["source"])
    finally:
        await door.listener.close()


@pytest.mark.asyncio
async def test_a_record_of_another_host_is_warned_about_once(
    door: Door, engines: Callable, caplog: pytest.LogCaptureFixture
) -> None:
    engine = engines(door.url)
    for _ in range(5):
        engine.send(beat(host="10.9.8.7"))
    await until(lambda: len(door.heard) == 5)
    assert caplog.text.count("10.9.8.7:8000 registers from 127.0.0.1") == 1


@pytest.mark.asyncio
async def test_a_thousand_bad_messages_are_one_line_of_log(
    door: Door, engines: Callable, caplog: pytest.LogCaptureFixture
) -> None:
    engine = engines(door.url)
    for _ in range(500):
        engine.send(b"\xc1")
    await until(lambda: len(door.rejected) == 500)
    assert caplog.text.count("dropped") == 1


@pytest.mark.asyncio
async def test_an_engine_of_another_connector_is_named_once_and_counted_each_time(
    door: Door, engines: Callable, caplog: pytest.LogCaptureFixture
) -> None:
    """Each engine, for an operator has to mend each; and it beats for ever."""
    engine = engines(door.url)
    for sent, name in ((3, "the first"), (6, "the second")):
        door.raises = HeartbeatError("connector", f"{name} is another's")
        for _ in range(3):
            engine.send(beat())
        await until(lambda sent=sent: len(door.rejected) == sent)
    assert door.listener.counts["connector"] == 6
    assert (door.listener.heard, door.heard) == (0, [])
    for name in ("the first", "the second"):
        assert caplog.text.count(f"dropped: connector: {name} is another's") == 1


@pytest.mark.asyncio
async def test_ipv6(engines: Callable) -> None:
    door = Door("tcp://[::1]:0")
    try:
        door.listener.bind()
    except StartError:
        pytest.skip("no IPv6 here")
    door.listener.start()
    try:
        engines(door.url).send(beat(host="::1"))
        await until(lambda: bool(door.heard))
        assert door.heard[0][0].address == "[::1]:8000"
        assert door.heard[0][1] == "::1"
    finally:
        await door.listener.close()


@pytest.mark.asyncio
async def test_dual_stack_takes_ipv4_with_its_plain_address(engines: Callable) -> None:
    door = Door("tcp://[::]:0", allow=("127.0.0.0/8",))
    try:
        door.listener.bind()
    except StartError:
        pytest.skip("no IPv6 here")
    door.listener.start()
    try:
        engines(f"tcp://127.0.0.1:{door.tcp[1]}").send(beat())
        await until(lambda: bool(door.heard))
        assert door.heard[0][1] == "127.0.0.1"
    finally:
        await door.listener.close()


@pytest.mark.asyncio
async def test_a_taken_port_is_named(door: Door) -> None:
    other = HeartbeatListener(door.url, lambda *_: None)
    with pytest.raises(StartError, match=door.url.removeprefix("tcp://")):
        other.bind()
    await other.close()


@pytest.mark.parametrize("listen", ["nonsense", "tcp://127.0.0.1:99999", "tcp://203.0.113.9:0"])
def test_an_address_that_cannot_be_bound_is_named(listen: str) -> None:
    with pytest.raises(StartError, match="cannot listen"):
        HeartbeatListener(listen, lambda *_: None).bind()


def test_an_allowed_network_that_is_none_is_named() -> None:
    with pytest.raises(StartError, match="not-a-network"):
        HeartbeatListener("tcp://127.0.0.1:0", lambda *_: None, allow=["not-a-network"])
