"""The management server: one ADS stream for each Envoy, and what all of them have ACKed.

Carries `sidecar.xds.subscription` over gRPC and adds time: who is silent, who has gone. Does not
know what a snapshot holds. Invariant: `publish` never waits for an Envoy.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc.aio
import msgspec
from envoy.service.discovery.v3 import discovery_pb2

from sidecar.xds.snapshot import ENDPOINTS, SEND_ORDER, Snapshot
from sidecar.xds.subscription import Acked, Effect, Nacked, Request, Response, Subscription

_log = logging.getLogger(__name__)
_SERVICE = "envoy.service.discovery.v3.AggregatedDiscoveryService"


class EnvoyState(msgspec.Struct, frozen=True):
    """One connected Envoy, for status."""

    node_id: str
    is_current: bool
    """it serves what was published last, all of it"""
    is_gating: bool
    """only endpoints that it has ACKed are placeable"""
    acked: dict[str, str]
    """type URL to the version it serves"""
    rejections: dict[str, str]
    """type URL to its reason for refusing the version sent last"""


class _Stream:
    """One ADS stream. `waits_since`: since when an answer about endpoints is awaited (clock)."""

    def __init__(self, snapshot: Snapshot | None, now: float) -> None:
        self.node_id = ""
        self.subscription = Subscription(snapshot)
        self.outbox: asyncio.Queue[Response | None] = asyncio.Queue()
        self.waits_since: float | None = now
        self.is_reported = False

    def is_silent(self, now: float, grace_s: float) -> bool:
        return self.waits_since is not None and now - self.waits_since >= grace_s

    def is_gating(self, now: float, grace_s: float) -> bool:
        is_rejected = self.subscription.rejection(ENDPOINTS) is not None
        return not (is_rejected or self.is_silent(now, grace_s))


class DiscoveryServer:
    """ADS for any number of Envoys. All methods belong to the event loop's thread.

    `on_change()` is called when `acked_endpoints` may have changed; `on_envoy_gone(node_id, now)`
    when an Envoy's stream has been gone for `grace_s` without coming back, or another process of
    that name has taken its place. `clock` is monotonic seconds, the same that `now` arguments come
    from.
    """

    def __init__(
        self,
        *,
        on_change: Callable[[], None],
        on_envoy_gone: Callable[[str, float], None],
        clock: Callable[[], float] = time.monotonic,
        grace_s: float = 2.0,
    ) -> None:
        self._on_change = on_change
        self._on_envoy_gone = on_envoy_gone
        self._clock = clock
        self._grace_s = grace_s
        self._snapshot: Snapshot | None = None
        self._streams: list[_Stream] = []
        self._timers: set[asyncio.TimerHandle] = set()
        self._is_closed = False
        self._serving: set[str] = set()
        """ids of Envoys that have accepted something and are not known to have gone"""
        self.snapshots_total = 0
        """snapshots published that differed from the one before"""
        self.nacks_total: Counter[str] = Counter()
        """by the type's short name, e.g. `Listener`"""

    def __repr__(self) -> str:
        return (
            f"<DiscoveryServer {self.connected()} connected, {self.snapshots_total} snapshots, "
            f"{self.nacks_total.total()} nacks>"
        )

    def register(self, server: grpc.aio.Server) -> None:
        """Add the service to a server that has not been started."""
        handler = grpc.stream_stream_rpc_method_handler(
            self._serve,
            request_deserializer=discovery_pb2.DiscoveryRequest.FromString,
            response_serializer=discovery_pb2.DiscoveryResponse.SerializeToString,
        )
        methods = {"StreamAggregatedResources": handler}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, methods),))

    def publish(self, snapshot: Snapshot) -> None:
        """Send what differs to every Envoy; returns at once."""
        if self._snapshot is not None and snapshot.types == self._snapshot.types:
            return
        self._snapshot = snapshot
        self.snapshots_total += 1
        for stream in self._streams:
            self._apply(stream, stream.subscription.on_snapshot(snapshot))

    def acked_endpoints(self, now: float) -> frozenset[str] | None:
        """`ip:port` that every gating Envoy has; None: no Envoy gates, so nothing is held back.

        An Envoy that refused its endpoints, or has not answered for `grace_s` after they were sent,
        does not gate until it ACKs (design §4).
        """
        gating = [s for s in self._newest() if s.is_gating(now, self._grace_s)]
        if not gating:
            return None
        return frozenset.intersection(*(s.subscription.acked_endpoints() for s in gating))

    def connected(self) -> int:
        return len(self._newest())

    def envoys(self) -> tuple[EnvoyState, ...]:
        now = self._clock()
        return tuple(self._state(stream, now) for stream in self._newest())

    def close(self) -> None:
        """No callback comes after this. Streams end with the gRPC server."""
        self._is_closed = True
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    async def _serve(
        self,
        requests: AsyncIterator[discovery_pb2.DiscoveryRequest],
        context: "grpc.aio.ServicerContext[Any, Any]",
    ) -> None:
        stream = _Stream(self._snapshot, self._clock())
        reader = asyncio.create_task(self._read(stream, requests))
        # A reader that ends, well or not, ends the stream.
        reader.add_done_callback(lambda _: stream.outbox.put_nowait(None))
        try:
            while (response := await stream.outbox.get()) is not None:
                await context.write(_encode(response))
            await reader
        finally:
            reader.cancel()
            self._forget(stream)

    async def _read(
        self, stream: _Stream, requests: AsyncIterator[discovery_pb2.DiscoveryRequest]
    ) -> None:
        async for request in requests:
            if not stream.node_id:
                self._greet(stream, request.node.id, has_accepted=bool(request.version_info))
            self._apply(stream, stream.subscription.on_request(_decode(request)))

    def _greet(self, stream: _Stream, node_id: str, *, has_accepted: bool) -> None:
        stream.node_id = node_id or "(no id)"
        if not has_accepted and stream.node_id in self._serving:
            # One that comes back says what it serves: this is a new process, so the old one died.
            self._bury(stream.node_id)
        self._streams.append(stream)
        self._later(self._review)
        _log.info("Envoy %s connected", stream.node_id)

    def _forget(self, stream: _Stream) -> None:
        if stream not in self._streams:
            return
        self._streams.remove(stream)
        if self._is_closed:
            return
        _log.info("Envoy %s: its stream ended", stream.node_id)
        self._on_change()
        self._later(lambda: self._mourn(stream.node_id))

    def _mourn(self, node_id: str) -> None:
        if all(s.node_id != node_id for s in self._streams):
            self._bury(node_id)

    def _bury(self, node_id: str) -> None:
        self._serving.discard(node_id)
        _log.warning("Envoy %s is gone", node_id)
        self._on_envoy_gone(node_id, self._clock())

    def _apply(self, stream: _Stream, effects: list[Effect]) -> None:
        has_news = False
        for effect in effects:
            if isinstance(effect, Response):
                stream.outbox.put_nowait(effect)
            elif isinstance(effect, Nacked):
                self._count_nack(stream, effect)
            elif isinstance(effect, Acked):
                self._serving.add(stream.node_id)
                self._say_taken(stream, effect)
            has_news = has_news or effect.type_url == ENDPOINTS
        if has_news:
            is_waiting = stream.subscription.is_outstanding(ENDPOINTS)
            stream.waits_since = self._clock() if is_waiting else None
            if is_waiting:
                self._later(self._review)
            self._on_change()

    def _say_taken(self, stream: _Stream, ack: Acked) -> None:
        if ack.type_url == ENDPOINTS and stream.is_reported:
            stream.is_reported = False
            _log.info("Envoy %s takes endpoints again", stream.node_id)

    def _count_nack(self, stream: _Stream, nack: Nacked) -> None:
        kind = _short(nack.type_url)
        self.nacks_total[kind] += 1
        if nack.type_url == ENDPOINTS:
            stream.is_reported = True
        _log.error("Envoy %s refuses %s %s: %s", stream.node_id, kind, nack.version, nack.detail)

    def _review(self) -> None:
        """Report who has become silent, once, and let the pool go on without it."""
        now = self._clock()
        for stream in self._streams:
            if stream.is_silent(now, self._grace_s) and not stream.is_reported:
                stream.is_reported = True
                _log.warning("Envoy %s does not answer; endpoints do not wait", stream.node_id)
                self._on_change()

    def _newest(self) -> list[_Stream]:
        """One stream for each node: after a reconnect the older may not have been seen to end."""
        return list({stream.node_id: stream for stream in self._streams}.values())

    def _state(self, stream: _Stream, now: float) -> EnvoyState:
        acked = {t: stream.subscription.acked_version(t) for t in SEND_ORDER}
        rejections = {t: stream.subscription.rejection(t) for t in SEND_ORDER}
        snapshot = self._snapshot
        return EnvoyState(
            stream.node_id,
            snapshot is not None and all(acked[t] == snapshot.version(t) for t in SEND_ORDER),
            stream.is_gating(now, self._grace_s),
            {t: version for t, version in acked.items() if version is not None},
            {t: detail for t, detail in rejections.items() if detail is not None},
        )

    def _later(self, act: Callable[[], None]) -> None:
        """Call `act` when the grace has passed (and a little, so that the clock agrees)."""

        def run() -> None:
            self._timers.discard(timer)
            act()

        timer = asyncio.get_running_loop().call_later(self._grace_s + 0.01, run)
        self._timers.add(timer)


def _short(type_url: str) -> str:
    return type_url.rpartition(".")[2]


def _decode(request: discovery_pb2.DiscoveryRequest) -> Request:
    has_error = request.HasField("error_detail")
    return Request(
        type_url=request.type_url,
        version=request.version_info,
        nonce=request.response_nonce,
        names=tuple(request.resource_names),
        error=request.error_detail.message if has_error else None,
    )


def _encode(response: Response) -> discovery_pb2.DiscoveryResponse:
    message = discovery_pb2.DiscoveryResponse(
        type_url=response.type_url, version_info=response.version, nonce=response.nonce
    )
    for resource in response.resources:
        message.resources.add().ParseFromString(resource)
    return message
