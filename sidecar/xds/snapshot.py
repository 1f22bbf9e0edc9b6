"""A whole Envoy configuration at one moment: every resource serialized, every type versioned.

Versions are hashes of the content, so they mean the same after a restart of ours: an Envoy that
still has a version needs nothing new. Invariant: a `Snapshot` is consistent, checked when it is
made (`Snapshot.of`), before any of it is sent (design §7).
"""

import hashlib
from collections.abc import Iterable, Mapping

import msgspec

from sidecar.errors import SnapshotError

_PREFIX = "type.googleapis.com/envoy.config."
CLUSTER = _PREFIX + "cluster.v3.Cluster"
ENDPOINTS = _PREFIX + "endpoint.v3.ClusterLoadAssignment"
LISTENER = _PREFIX + "listener.v3.Listener"
ROUTES = _PREFIX + "route.v3.RouteConfiguration"

SEND_ORDER = (CLUSTER, ENDPOINTS, LISTENER, ROUTES)
"""Make before break: what is referred to goes before what refers to it (xDS protocol, "Eventual
consistency considerations"; go-control-plane's ADS order)."""

WILDCARD_TYPES = frozenset({CLUSTER, LISTENER})
"""Types of which a request without names asks for all."""


class Resources(msgspec.Struct, frozen=True):
    """All resources of one type."""

    version: str
    by_name: Mapping[str, bytes]
    """name to a serialized `google.protobuf.Any`"""

    @classmethod
    def of(cls, by_name: Mapping[str, bytes]) -> "Resources":
        """The bytes must be deterministic: the version is their hash."""
        digest = hashlib.sha256()
        for name in sorted(by_name):
            for part in (name.encode(), by_name[name]):
                digest.update(len(part).to_bytes(8, "big") + part)
        return cls(digest.hexdigest()[:16], dict(by_name))


class Reference(msgspec.Struct, frozen=True):
    """`source` (a resource's name) needs the resource `name` of type `type_url`."""

    source: str
    type_url: str
    name: str


class Snapshot(msgspec.Struct, frozen=True):
    """One consistent configuration. Make it with `of`."""

    types: Mapping[str, Resources]
    """type URL to its resources; the keys are SEND_ORDER"""
    references: tuple[Reference, ...]
    endpoints: frozenset[str]
    """`ip:port` (IPv6 in brackets) of every engine in the endpoint list"""

    @classmethod
    def of(
        cls,
        types: Mapping[str, Resources],
        references: Iterable[Reference],
        endpoints: Iterable[str],
    ) -> "Snapshot":
        """Raises SnapshotError naming every missing type and every reference to nowhere."""
        references = tuple(references)
        faults = [f"no resources of type {t}" for t in SEND_ORDER if t not in types]
        faults += [
            f"{r.source} refers to {r.name}, which is not among the resources of {r.type_url}"
            for r in references
            if r.type_url in types and r.name not in types[r.type_url].by_name
        ]
        if faults:
            raise SnapshotError("; ".join(faults))
        return cls(dict(types), references, frozenset(endpoints))

    def version(self, type_url: str) -> str:
        return self.types[type_url].version
