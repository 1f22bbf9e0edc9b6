"""Every value that the Envoy configuration takes from ours, in one frozen value.

Field names are the placeholders of `envoy/*.yaml`. Durations are seconds unless the name says
`_ms`; 0 turns a time limit off in Envoy, so callers that allow it must mean it.
"""

import msgspec


class EdgeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the edge listens on and the limits it keeps. The configuration validates them."""

    node_id: str
    """Envoy's node id: by it a living Envoy is recognised as ours (design §2)"""
    control_socket: str
    """path of the control process's unix socket (ADS and ALS), at most 107 bytes"""
    worker_sockets: tuple[str, ...]
    """path of each worker's ext_proc unix socket; more of them than live workers does no harm"""

    listen_host: str = "0.0.0.0"
    """an address, not a name; IPv6 without brackets"""
    listen_port: int = 10001
    admin_host: str = "127.0.0.1"
    admin_port: int = 9901

    cors_origins: tuple[str, ...] = ()
    """pages that may call, each `scheme://host[:port]`, or `*` for any; empty: none"""
    cors_max_age_s: int = 600
    """so long a browser remembers that it may"""

    profile_routes: bool = False
    """/start_profile and /stop_profile lead to the control process"""
    profile_host: str = "127.0.0.1"
    """the control process's admin, an address that can be connected to"""
    profile_port: int = 9900

    max_heap_bytes: int = 4 << 30
    """of Envoy's memory; from seven tenths of it on, uploads are ended"""

    listener_backlog: int = 4096
    """connections that wait to be accepted; the kernel caps it at net.core.somaxconn"""
    buffer_limit_bytes: int = 16384
    """Of each connection, on both sides: what a slow reader makes Envoy hold, twice, above what an
    open stream takes (seen: 27 KiB; of 256 KiB it was 360). Larger ones saved no time at any size
    of a body."""
    http_idle_timeout_s: float = 3600
    """a client's connection without a request is closed after this"""
    http_max_concurrent_streams: int = 1024
    """requests at once on one HTTP/2 connection of a client"""
    max_body_bytes: int = 64 << 20
    """of a request; Envoy is coarse and allows 64 KiB more, the sidecar decides exactly"""
    upload_timeout_s: float = 60
    """from a request's first byte to its last"""

    flush_timeout_s: float = 60
    """a client that takes no byte of an answer which is done is let go after this"""

    decode_headers_timeout_s: float = 600
    """streamed: from dispatch to the response headers"""
    decode_idle_timeout_s: float = 600
    """streamed: between bytes, before the headers too, so not below `decode_headers_timeout_s`"""
    decode_whole_timeout_s: float = 3600
    """not streamed: from dispatch to the headers, and between bytes"""

    upstream_connect_timeout_s: float = 5
    upstream_idle_timeout_s: float = 4
    """an idle connection to an engine is closed after this; vLLM closes at 5 s"""
    upstream_max_connections: int = 1_000_000
    """of one cluster; Envoy's default of 1024 refuses a burst, as it does for the two below"""
    upstream_max_pending: int = 1_000_000
    """requests that wait for a connection"""
    upstream_max_requests: int = 1_000_000
    """requests open at once, and retries"""

    access_log_path: str | None = None
    """Envoy's own log of ended requests, one JSON object a line; None: no file"""
    access_log_buffer_interval_ms: float = 200
    """finished exchanges reach the control process in batches of this age"""
    access_log_report_interval_s: float = 10
    """open exchanges are reported again and again at this interval"""
