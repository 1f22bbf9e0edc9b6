"""The state of one ADS stream (state of the world): requests and snapshots in, responses out.

One Envoy asks for the types of `SEND_ORDER` over one stream. For each type:

    unsubscribed --first request--> due --sent--> outstanding --ACK/NACK--> settled
                                     ^                                        |
                                     '--- another version, other names, ------'
                                          asked again, or what refers to it was sent

Rules (xDS protocol, and go-control-plane's server): a request with a nonce that is not the latest
is stale and ignored; one response of a type is outstanding at a time, so a burst of snapshots is
sent as its last one; a NACK leaves what Envoy has, and a refused version is not sent again.

A request with the latest nonce, when that response is settled, is no ACK: Envoy asks again for what
it needs for a new cluster or listener. An answer held back would leave that one warming for ever
without a NACK. For the same reason endpoints follow each new cluster version even if unchanged, and
routes each new listener version.

Pure: knows no stream, clock or protobuf.
"""

from collections.abc import Sequence

import msgspec

from sidecar.xds.snapshot import (
    CLUSTER,
    ENDPOINTS,
    LISTENER,
    ROUTES,
    SEND_ORDER,
    WILDCARD_TYPES,
    Snapshot,
)

_FOLLOWS = {CLUSTER: ENDPOINTS, LISTENER: ROUTES}


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What matters of a DiscoveryRequest."""

    type_url: str
    version: str = ""
    """what Envoy has accepted, also from an earlier stream"""
    nonce: str = ""
    """of the response that this answers; empty: the first request of the type on this stream"""
    names: tuple[str, ...] = ()
    error: str | None = None
    """None: no fault; otherwise Envoy's reason for refusing"""


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """A DiscoveryResponse to send."""

    type_url: str
    version: str
    nonce: str
    resources: tuple[bytes, ...]
    """each a serialized `google.protobuf.Any`"""


class Acked(msgspec.Struct, frozen=True):
    """Envoy has taken `version` of `type_url`."""

    type_url: str
    version: str


class Nacked(msgspec.Struct, frozen=True):
    """Envoy refused `version` of `type_url` and keeps what it had."""

    type_url: str
    version: str
    detail: str


Effect = Response | Acked | Nacked


class _State(msgspec.Struct):
    """Of one type on this stream."""

    is_subscribed: bool = False
    names: frozenset[str] = frozenset()
    is_due: bool = False
    nonce: str = ""
    is_outstanding: bool = False
    sent: Snapshot | None = None
    acked: Snapshot | None = None
    rejection: str | None = None


class Subscription:
    """One stream's state machine. Each call returns what follows from it, in order."""

    def __init__(self, snapshot: Snapshot | None = None) -> None:
        self._snapshot = snapshot
        self._states = {type_url: _State() for type_url in SEND_ORDER}
        self._nonces = 0

    def on_request(self, request: Request) -> list[Effect]:
        """A request for a type that no snapshot has is never answered."""
        state = self._states.get(request.type_url)
        if state is None:
            return []
        if state.is_subscribed and request.nonce and request.nonce != state.nonce:
            return []
        facts = self._settle(request, state)
        self._subscribe(request, state)
        return [*facts, *self._send_due()]

    def on_snapshot(self, snapshot: Snapshot) -> list[Effect]:
        self._snapshot = snapshot
        return [*self._send_due()]

    def acked_version(self, type_url: str) -> str | None:
        """What Envoy serves; None: nothing of ours yet."""
        acked = self._states[type_url].acked
        return acked.version(type_url) if acked else None

    def rejection(self, type_url: str) -> str | None:
        """Envoy's reason for refusing the version sent last; None: it has not."""
        return self._states[type_url].rejection

    def is_outstanding(self, type_url: str) -> bool:
        return self._states[type_url].is_outstanding

    def acked_endpoints(self) -> frozenset[str]:
        """Endpoints that Envoy has for certain: while an answer is awaited, those of both lists."""
        state = self._states[ENDPOINTS]
        if state.acked is None:
            return frozenset()
        if state.is_outstanding and state.sent is not None:
            return state.acked.endpoints & state.sent.endpoints
        return state.acked.endpoints

    def _settle(self, request: Request, state: _State) -> list[Effect]:
        """The ACK or NACK in a request, or what Envoy still has from an earlier stream."""
        if not state.is_subscribed or not request.nonce:
            return self._recall(request, state)
        if not state.is_outstanding or state.sent is None:
            state.is_due = state.is_due or request.error is None
            return []
        state.is_outstanding = False
        version = state.sent.version(request.type_url)
        if request.error is not None:
            state.rejection = request.error
            return [Nacked(request.type_url, version, request.error)]
        state.acked, state.rejection = state.sent, None
        return [Acked(request.type_url, version)]

    def _recall(self, request: Request, state: _State) -> list[Effect]:
        """A first request. Versions are hashes, so one that is ours is known to be there."""
        state.is_due, state.is_outstanding = True, False
        snapshot = self._snapshot
        if snapshot is None or request.version != snapshot.version(request.type_url):
            return []
        state.acked = snapshot
        return [Acked(request.type_url, request.version)]

    def _subscribe(self, request: Request, state: _State) -> None:
        names = frozenset(request.names)
        if state.is_subscribed and names != state.names:
            state.is_due = True
        state.is_subscribed, state.names = True, names

    def _send_due(self) -> list[Response]:
        """Every response that may go now, in the order in which Envoy must have them."""
        if self._snapshot is None:
            return []
        responses: list[Response] = []
        for type_url, state in self._states.items():
            if not state.is_subscribed or state.is_outstanding:
                continue
            is_new = state.sent is None or (
                state.sent.version(type_url) != self._snapshot.version(type_url)
            )
            resources = self._wanted(type_url, state)
            if (is_new or state.is_due) and resources is not None:
                responses.append(self._send(type_url, state, resources))
                if is_new and type_url in _FOLLOWS:
                    self._states[_FOLLOWS[type_url]].is_due = True
        return responses

    def _wanted(self, type_url: str, state: _State) -> Sequence[bytes] | None:
        """None: nothing to say. An empty list says 'there are none', of wildcard types alone."""
        assert self._snapshot is not None
        by_name = self._snapshot.types[type_url].by_name
        if "*" in state.names or (not state.names and type_url in WILDCARD_TYPES):
            return [by_name[name] for name in sorted(by_name)]
        return [by_name[name] for name in sorted(state.names & by_name.keys())] or None

    def _send(self, type_url: str, state: _State, resources: Sequence[bytes]) -> Response:
        assert self._snapshot is not None
        self._nonces += 1
        state.nonce = str(self._nonces)
        state.sent, state.is_due, state.is_outstanding = self._snapshot, False, True
        return Response(
            type_url=type_url,
            version=self._snapshot.version(type_url),
            nonce=state.nonce,
            resources=tuple(resources),
        )
