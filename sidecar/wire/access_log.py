"""Envoy's access log entries (ALS v3) to values, and the `pd.rec` metadata that comes back in them.

Source: envoy/service/accesslog/v3/als.proto, envoy/data/accesslog/v3/accesslog.proto.
"""

import msgspec
from envoy.data.accesslog.v3 import accesslog_pb2
from envoy.service.accesslog.v3 import als_pb2
from google.protobuf.message import DecodeError

from sidecar.errors import RemoteError
from sidecar.routing.instance import TransferMode
from sidecar.routing.slots import Slot
from sidecar.wire.names import join_address

_FLAGS = {
    "failed_local_healthcheck": "LH",
    "no_healthy_upstream": "UH",
    "upstream_request_timeout": "UT",
    "local_reset": "LR",
    "upstream_remote_reset": "UR",
    "upstream_connection_failure": "UF",
    "upstream_connection_termination": "UC",
    "upstream_overflow": "UO",
    "no_route_found": "NR",
    "rate_limited": "RL",
    "downstream_connection_termination": "DC",
    "upstream_retry_limit_exceeded": "URX",
    "stream_idle_timeout": "SI",
    "downstream_protocol_error": "DPE",
    "upstream_max_stream_duration_reached": "UMSDR",
    "no_filter_config_found": "NFCF",
    "duration_timeout": "DT",
    "upstream_protocol_error": "UPE",
    "no_cluster_found": "NC",
    "overload_manager": "OM",
    "response_from_cache_filter": "RFCF",
    "invalid_envoy_request_headers": "IH",
    "delay_injected": "DI",
    "fault_injected": "FI",
    "dns_resolution_failure": "DF",
    "unauthorized_details": "UAEX",
    "rate_limit_service_error": "RLSE",
    "downstream_remote_reset": "DR",
}
"""Fields of `ResponseFlags`, by Envoy's own short names."""
_NO_FLAGS: frozenset[str] = frozenset()


class Trail(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What the body step leaves in `pd.rec`, enough to adopt an exchange nobody remembers."""

    worker: int
    api: str
    model: str
    is_streaming: bool
    mode: TransferMode | None
    prefill: Slot | None
    decode: Slot | None


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One access log entry of the edge."""

    exchange: str
    """empty: the request never reached the sidecar"""
    is_end: bool
    """False: a report of a stream that is still open"""
    status: int
    """0: the client left before any answer"""
    flags: frozenset[str]
    """Envoy's short response flags"""
    upstream: str
    """`ip:port` that served; empty: none"""
    trail: Trail | None
    reply: str
    """the reason, when the sidecar itself answered"""
    total_s: float | None
    first_byte_s: float | None
    """from the request's first byte to the first byte of the answer's body"""
    lasted_s: float = 0.0
    """from the request's first byte to this entry"""
    details: str = ""
    """Envoy's word for where the status came from"""

    @property
    def is_engines(self) -> bool:
        """The status line is the engine's own. Envoy answers no 2xx by itself; what it says of one
        that broke off later is the break."""
        return self.details == "via_upstream" or 200 <= self.status < 300


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt at an engine that failed: an entry of the router's `upstream_log`.

    It has no exchange, and a retry may have served the request elsewhere.
    """

    upstream: str
    """`ip:port`"""
    flags: frozenset[str]
    failure: str
    """in Envoy's words, why there is no connection"""
    took_s: float
    """from its beginning to its end"""


_trail = msgspec.json.Decoder(Trail)


def encode_trail(trail: Trail) -> str:
    return msgspec.json.encode(trail).decode()


def decode_trail(text: str) -> Trail | None:
    """None for nothing or for what is not a trail (another version's, or a bug): never an error."""
    try:
        return _trail.decode(text) if text else None
    except (msgspec.MsgspecError, RecursionError):
        return None


def decode(data: bytes) -> list[Entry | Attempt]:
    """One StreamAccessLogsMessage. Raises RemoteError on garbage."""
    try:
        message = als_pb2.StreamAccessLogsMessage.FromString(data)
    except DecodeError as error:
        raise RemoteError(f"not a StreamAccessLogsMessage: {error}") from None
    return [
        _attempt(e)
        if e.common_properties.access_log_type == accesslog_pb2.UpstreamEnd
        else _entry(e)
        for e in message.http_logs.log_entry
    ]


def _attempt(entry: accesslog_pb2.HTTPAccessLogEntry) -> Attempt:
    common = entry.common_properties
    return Attempt(
        upstream=_upstream(common),
        flags=_flags(common.response_flags),
        failure=common.upstream_transport_failure_reason,
        took_s=common.duration.seconds + common.duration.nanos / 1e9,
    )


def _entry(entry: accesslog_pb2.HTTPAccessLogEntry) -> Entry:
    common = entry.common_properties
    tags = {k: "" if v == "-" else v for k, v in common.custom_tags.items()}
    return Entry(
        exchange=tags.get("ex", ""),
        is_end=common.access_log_type in (accesslog_pb2.NotSet, accesslog_pb2.DownstreamEnd),
        status=entry.response.response_code.value,
        flags=_flags(common.response_flags),
        upstream=_upstream(common),
        trail=decode_trail(tags.get("rec", "")),
        reply=tags.get("reply", ""),
        total_s=_seconds(tags.get("total_us", "")),
        first_byte_s=_seconds(tags.get("ttfb_us", "")),
        lasted_s=common.duration.seconds + common.duration.nanos / 1e9,
        details=entry.response.response_code_details,
    )


def _upstream(common: accesslog_pb2.AccessLogCommon) -> str:
    socket = common.upstream_remote_address.socket_address
    return join_address(socket.address, socket.port_value) if socket.address else ""


def _flags(flags: accesslog_pb2.ResponseFlags) -> frozenset[str]:
    """A flag that a later Envoy adds keeps its field's name."""
    if not flags.ByteSize():  # the usual; to list the fields of none takes longer than to find out
        return _NO_FLAGS
    return frozenset(_FLAGS.get(field.name, field.name) for field, _ in flags.ListFields())


def _seconds(microseconds: str) -> float | None:
    """None for what is no number, or for one of more than 30,000 years."""
    is_time = microseconds.isdecimal() and len(microseconds) <= 18
    return int(microseconds) / 1e6 if is_time else None
