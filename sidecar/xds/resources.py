"""The YAML files in `envoy/`, the settings and the pool's addresses, made into a `Snapshot`.

Reads no file and sends nothing. Invariant: equal arguments give equal bytes, in every process, so
that a restart of ours is no change for Envoy.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from envoy.config.cluster.v3 import cluster_pb2
from envoy.config.endpoint.v3 import endpoint_pb2
from envoy.config.listener.v3 import listener_pb2
from envoy.config.route.v3 import route_pb2
from google.protobuf import any_pb2, json_format
from google.protobuf.message import Message

from sidecar.errors import SnapshotError
from sidecar.xds import extensions
from sidecar.xds.settings import EdgeSettings
from sidecar.xds.snapshot import (
    CLUSTER,
    ENDPOINTS,
    LISTENER,
    ROUTES,
    Reference,
    Resources,
    Snapshot,
)
from sidecar.xds.templates import Template

ENGINES = "engines"
"""the EDS cluster, and its endpoint list's name"""
_BODY_SLACK_BYTES = 65536
"""Envoy's body limit is coarse, so it is this much above ours (design §7)."""

_LISTENER_NAMES = (
    "listen_host", "listen_port", "listener_backlog", "buffer_limit_bytes", "http_idle_timeout_s",
    "http_max_concurrent_streams", "upload_timeout_s", "flush_timeout_s", "access_log_path",
    "access_log_report_interval_s",
)  # fmt: skip
_ROUTES_NAMES = (
    "decode_headers_timeout_s", "decode_idle_timeout_s", "decode_whole_timeout_s",
    "profile_routes",
)  # fmt: skip
_CLUSTERS_NAMES = (
    "buffer_limit_bytes", "upstream_connect_timeout_s", "upstream_idle_timeout_s",
    "upstream_max_connections", "upstream_max_pending", "upstream_max_requests",
    "profile_routes", "profile_host", "profile_port",
)  # fmt: skip


class Templates(msgspec.Struct, frozen=True, kw_only=True):
    """The three files of which the edge is made, parsed once."""

    listener: Template
    routes: Template
    clusters: Template


def build_snapshot(
    templates: Templates, settings: EdgeSettings, endpoints: Sequence[str]
) -> Snapshot:
    """The whole configuration.

    `endpoints` are `ip:port`, IPv6 in brackets, in any order, doubles allowed. Raises SnapshotError
    when a template does not fit the settings or Envoy's API, or a reference leads nowhere.
    """
    listeners = templates.listener.fill(_listener_values(settings))["resources"]
    routes = templates.routes.fill(_routes_values(settings))["resources"]
    clusters = templates.clusters.fill(_clusters_values(settings))["resources"]
    types = {
        CLUSTER: _resources(templates.clusters.name, clusters, cluster_pb2.Cluster),
        ENDPOINTS: _endpoint_resources(endpoints),
        LISTENER: _resources(templates.listener.name, listeners, listener_pb2.Listener),
        ROUTES: _resources(templates.routes.name, routes, route_pb2.RouteConfiguration),
    }
    references = [*_references_to_endpoints(clusters), *_references_to_routes(listeners)]
    references += _references_to_clusters(routes)
    return Snapshot.of(types, references, endpoints)


def with_endpoints(snapshot: Snapshot, endpoints: Sequence[str]) -> Snapshot:
    """The same configuration with another endpoint list: what a change of the pool costs."""
    types = {**snapshot.types, ENDPOINTS: _endpoint_resources(endpoints)}
    return Snapshot.of(types, snapshot.references, endpoints)


def _pick(settings: EdgeSettings, names: Sequence[str]) -> dict[str, object]:
    return {name: getattr(settings, name) for name in names}


def _listener_values(settings: EdgeSettings) -> dict[str, object]:
    return {
        **_pick(settings, _LISTENER_NAMES),
        "access_log_buffer_interval_s": settings.access_log_buffer_interval_ms / 1000,
    }


def _routes_values(settings: EdgeSettings) -> dict[str, object]:
    return {
        **_pick(settings, _ROUTES_NAMES),
        "body_buffer_limit_bytes": settings.max_body_bytes + _BODY_SLACK_BYTES,
        "cors_max_age_s": str(settings.cors_max_age_s),  # Envoy takes it as text
        "cors_origins": [_origin_matcher(origin) for origin in settings.cors_origins],
    }


def _origin_matcher(origin: str) -> dict[str, object]:
    """Envoy's `StringMatcher`."""
    return {"safe_regex": {"regex": ".+"}} if origin == "*" else {"exact": origin}


def _clusters_values(settings: EdgeSettings) -> dict[str, object]:
    workers = [{"endpoint": {"address": {"pipe": {"path": p}}}} for p in settings.worker_sockets]
    return {**_pick(settings, _CLUSTERS_NAMES), "worker_endpoints": workers}


def _resources(file: str, documents: list[dict[str, Any]], kind: type[Message]) -> Resources:
    by_name: dict[str, bytes] = {}
    for document in documents:
        name = document.get("name", "")
        try:
            packed = json_format.ParseDict(document, any_pb2.Any())
        except json_format.ParseError as error:
            raise SnapshotError(f"{file}: {name}: {error}") from error
        if packed.TypeName() != kind.DESCRIPTOR.full_name:
            raise SnapshotError(f"{file}: {name}: {packed.type_url} is not {kind.DESCRIPTOR.name}")
        extensions.repack(packed)
        by_name[name] = packed.SerializeToString(deterministic=True)
    return Resources.of(by_name)


def _endpoint_resources(endpoints: Sequence[str]) -> Resources:
    """Sorted, so that the order in which instances came is no change (`ClusterLoadAssignment`)."""
    assignment = endpoint_pb2.ClusterLoadAssignment(cluster_name=ENGINES)
    locality = assignment.endpoints.add()
    for endpoint in sorted(set(endpoints)):
        host, port = _split_endpoint(endpoint)
        address = locality.lb_endpoints.add().endpoint.address.socket_address
        address.address = host
        address.port_value = port
    packed = any_pb2.Any()
    packed.Pack(assignment, deterministic=True)
    return Resources.of({ENGINES: packed.SerializeToString(deterministic=True)})


def _split_endpoint(endpoint: str) -> tuple[str, int]:
    """IPv6 bare, as Envoy takes it here (with brackets it refuses the whole list)."""
    host, colon, port = endpoint.rpartition(":")
    if not (colon and host and port.isdecimal() and 0 < int(port) < 65536):
        raise SnapshotError(f"endpoint {endpoint!r} is not ip:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _references_to_endpoints(clusters: list[dict[str, Any]]) -> Iterator[Reference]:
    for cluster in clusters:
        if cluster.get("type") == "EDS":
            wanted = cluster.get("eds_cluster_config", {}).get("service_name", cluster["name"])
            yield Reference(f"cluster {cluster['name']}", ENDPOINTS, wanted)


def _references_to_routes(listeners: list[dict[str, Any]]) -> Iterator[Reference]:
    for listener in listeners:
        for rds in _find(listener, "rds"):
            yield Reference(f"listener {listener['name']}", ROUTES, rds["route_config_name"])


def _references_to_clusters(routes: list[dict[str, Any]]) -> Iterator[Reference]:
    for table in routes:
        for action in _find(table, "route"):
            yield Reference(f"route table {table['name']}", CLUSTER, action["cluster"])


def _find(node: object, key: str) -> Iterator[dict[str, Any]]:
    """Every mapping that stands under `key`, at any depth."""
    if isinstance(node, dict):
        for name, value in node.items():
            if name == key and isinstance(value, dict):
                yield value
            yield from _find(value, key)
    elif isinstance(node, list):
        for value in node:
            yield from _find(value, key)
