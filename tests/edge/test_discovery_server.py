"""The management server over a real gRPC channel: what is gated by whom, and who is told."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio
import pytest
import pytest_asyncio
from envoy.service.discovery.v3 import discovery_pb2
from polling import until

from sidecar.edge.discovery_server import DiscoveryServer
from sidecar.xds.snapshot import ENDPOINTS, SEND_ORDER, Resources, Snapshot

pytestmark = pytest.mark.asyncio

METHOD = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
GRACE_S = 0.3


def snapshot(*endpoints: str) -> Snapshot:
    content = {t: Resources.of({"x": b""}) for t in SEND_ORDER}
    content[ENDPOINTS] = Resources.of({"engines": b"".join(_any(e) for e in endpoints)})
    return Snapshot.of(content, (), endpoints)


def _any(text: str) -> bytes:
    """As an `Any` whose type_url is the text: enough to be told apart."""
    return b"\x0a" + bytes([len(text)]) + text.encode()


class Client:
    """An Envoy's side of one ADS stream."""

    def __init__(self, channel: grpc.aio.Channel, node_id: str) -> None:
        self._call = channel.stream_stream(
            METHOD,
            request_serializer=discovery_pb2.DiscoveryRequest.SerializeToString,
            response_deserializer=discovery_pb2.DiscoveryResponse.FromString,
        )()
        self._node_id = node_id

    async def ask(self, version: str = "") -> None:
        request = discovery_pb2.DiscoveryRequest(
            type_url=ENDPOINTS, resource_names=["engines"], version_info=version
        )
        request.node.id = self._node_id
        await self._call.write(request)

    async def read(self) -> discovery_pb2.DiscoveryResponse:
        return await asyncio.wait_for(self._call.read(), 5)

    async def answer(self, response: discovery_pb2.DiscoveryResponse, error: str = "") -> None:
        request = discovery_pb2.DiscoveryRequest(
            type_url=ENDPOINTS,
            resource_names=["engines"],
            version_info=response.version_info,
            response_nonce=response.nonce,
        )
        if error:
            request.error_detail.message = error
        await self._call.write(request)

    async def take(self) -> None:
        """Receive one response and ACK it."""
        await self.answer(await self.read())

    def leave(self) -> None:
        self._call.cancel()


class Bench:
    """A server on a unix socket, its callbacks recorded."""

    def __init__(self) -> None:
        self.changes = 0
        self.gone: list[str] = []
        self.server = DiscoveryServer(
            on_change=self._on_change,
            on_envoy_gone=lambda node, _now: self.gone.append(node),
            grace_s=GRACE_S,
        )

    def _on_change(self) -> None:
        self.changes += 1

    def acked(self) -> frozenset[str] | None:
        return self.server.acked_endpoints(asyncio.get_running_loop().time())

    def envoy(self, node_id: str = "n") -> Client:
        return Client(self.channel, node_id)

    async def connect(self, node_id: str = "n", version: str = "") -> Client:
        """An Envoy that has ACKed what is published; `version`: what it served before."""
        client = self.envoy(node_id)
        await client.ask(version)
        await client.take()
        return client


@pytest_asyncio.fixture
async def bench() -> AsyncIterator[Bench]:
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="pd-") as directory:
        bench = Bench()
        server = grpc.aio.server()
        bench.server.register(server)
        address = f"unix:{Path(directory) / 'ads.sock'}"
        server.add_insecure_port(address)
        await server.start()
        async with grpc.aio.insecure_channel(address) as channel:
            bench.channel = channel
            yield bench
        bench.server.close()
        await server.stop(None)


async def test_without_an_envoy_nothing_is_gated(bench: Bench) -> None:
    bench.server.publish(snapshot("a"))
    assert bench.acked() is None
    assert bench.server.connected() == 0


async def test_endpoints_count_when_they_are_acked(bench: Bench) -> None:
    bench.server.publish(snapshot("a"))
    envoy = bench.envoy()
    await envoy.ask()
    response = await envoy.read()
    assert bench.acked() == frozenset()
    await envoy.answer(response)
    await until(lambda: bench.acked() == {"a"}, "the ACK")
    assert bench.server.connected() == 1
    before = bench.changes
    bench.server.publish(snapshot("a", "b"))
    await envoy.take()
    await until(lambda: bench.acked() == {"a", "b"}, "the second ACK")
    assert bench.changes > before


async def test_the_slowest_of_several_envoys_decides(bench: Bench) -> None:
    bench.server.publish(snapshot("a"))
    fast, slow = await bench.connect("fast"), await bench.connect("slow")
    await until(lambda: bench.acked() == {"a"}, "both ACKs")
    bench.server.publish(snapshot("a", "b"))
    await fast.take()
    held = await slow.read()
    await asyncio.sleep(0)
    assert bench.acked() == {"a"}
    await slow.answer(held)
    await until(lambda: bench.acked() == {"a", "b"}, "the slow ACK")


async def test_a_silent_envoy_stops_gating_and_is_reported_once(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.server.publish(snapshot("a"))
    envoy = await bench.connect()
    await until(lambda: bench.acked() == {"a"}, "the ACK")
    bench.server.publish(snapshot("a", "b"))
    before = bench.changes
    await until(lambda: bench.acked() is None, "not gated any more")
    await until(lambda: bench.changes > before, "the change is told")
    await asyncio.sleep(GRACE_S * 2)
    assert [r.message for r in caplog.records if "does not answer" in r.message].__len__() == 1
    await envoy.take()
    await until(lambda: bench.acked() == {"a", "b"}, "it gates again")


async def test_a_refusal_stops_gating_and_is_counted_and_shown(bench: Bench) -> None:
    bench.server.publish(snapshot("a"))
    envoy = await bench.connect()
    await until(lambda: bench.acked() == {"a"}, "the ACK")
    bench.server.publish(snapshot("bad"))
    await envoy.answer(await envoy.read(), error="malformed")
    await until(lambda: bench.acked() is None, "not gated any more")
    assert bench.server.nacks_total == {"ClusterLoadAssignment": 1}
    (state,) = bench.server.envoys()
    assert (state.node_id, state.is_gating, state.is_current) == ("n", False, False)
    assert state.rejections == {ENDPOINTS: "malformed"}
    assert state.acked == {ENDPOINTS: snapshot("a").version(ENDPOINTS)}
    bench.server.publish(snapshot("b"))
    await envoy.take()
    await until(lambda: bench.acked() == {"b"}, "it gates again")


async def test_equal_snapshots_are_one(bench: Bench) -> None:
    bench.server.publish(snapshot("a"))
    bench.server.publish(snapshot("a"))
    bench.server.publish(snapshot("b"))
    assert bench.server.snapshots_total == 2


async def test_an_envoy_that_comes_back_with_our_version_gates_at_once(bench: Bench) -> None:
    bench.server.publish(snapshot("a"))
    envoy = bench.envoy()
    await envoy.ask(version=snapshot("a").version(ENDPOINTS))
    await until(lambda: bench.server.connected() == 1, "connected")
    assert bench.acked() == {"a"}


async def test_an_envoy_that_leaves_is_told_of_after_the_grace(bench: Bench) -> None:
    bench.server.publish(snapshot("a"))
    envoy = await bench.connect()
    await until(lambda: bench.acked() == {"a"}, "the ACK")
    envoy.leave()
    await until(lambda: bench.server.connected() == 0, "the stream's end")
    assert (bench.acked(), bench.gone) == (None, [])
    await until(lambda: bench.gone == ["n"], "the callback")


async def test_another_process_of_the_same_name_says_that_the_first_is_gone(bench: Bench) -> None:
    """One that comes back names the version it serves; one that has just started names none."""
    bench.server.publish(snapshot("a"))
    await bench.connect()
    await until(lambda: bench.acked() == {"a"}, "the ACK")
    await bench.connect(version="earlier")
    assert bench.gone == []
    await bench.envoy().ask()
    await until(lambda: bench.gone == ["n"], "gone, before its time", GRACE_S / 2)
    await bench.envoy().ask()
    await until(lambda: len(bench.server._streams) == 4, "connected")
    assert bench.gone == ["n"], "one that has served nothing has nothing to lose"


async def test_an_envoy_that_comes_back_in_time_is_not_gone(bench: Bench) -> None:
    bench.server.publish(snapshot("a"))
    envoy = await bench.connect()
    envoy.leave()
    await until(lambda: bench.server.connected() == 0, "the stream's end")
    again = await bench.connect(version="earlier")
    await asyncio.sleep(GRACE_S * 2)
    assert bench.gone == []
    again.leave()
    await until(lambda: bench.gone == ["n"], "gone at last")


async def test_of_two_streams_of_one_node_the_newer_counts(bench: Bench) -> None:
    bench.server.publish(snapshot("a"))
    stale = await bench.connect()
    fresh = await bench.connect(version="earlier")
    await until(lambda: bench.acked() == {"a"}, "the ACK")
    bench.server.publish(snapshot("b"))
    await fresh.take()
    await until(lambda: bench.acked() == {"b"}, "the newer's ACK is enough")
    assert bench.server.connected() == 1
    stale.leave()
    await asyncio.sleep(GRACE_S * 2)
    assert bench.gone == []


async def test_nothing_is_called_after_close(bench: Bench) -> None:
    bench.server.publish(snapshot("a"))
    envoy = await bench.connect()
    await until(lambda: bench.acked() == {"a"}, "the ACK")
    bench.server.close()
    changes = bench.changes
    envoy.leave()
    await asyncio.sleep(GRACE_S * 2)
    assert (bench.gone, bench.changes) == ([], changes)
