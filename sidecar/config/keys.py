"""The configuration's keys: name, type, default, and what each means."""

import typing

import msgspec

WORKERS_MAX = 8
"""worker processes"""


ConnectorName = typing.Literal["moriio", "nixl"]


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """A group of keys."""


class Cors(Section, frozen=True, kw_only=True):
    """Calls from web pages. Off, a browser lets no page of another origin send JSON here."""

    allow_origins: tuple[str, ...] = ()
    """exact origins (`https://chat.example.com`, `http://localhost:3000`), or `*`; empty: off"""
    max_age_s: int = 600
    """so long a browser remembers what it was allowed; 0: it asks each time"""


class Edge(Section, frozen=True, kw_only=True):
    listen: str = "0.0.0.0:10001"
    """`ip:port` of the HTTP edge (Envoy)"""
    access_log_path: str | None = None
    """Envoy also writes one JSON line a request to this file; null: it does not"""
    cors: Cors = Cors()
    profile_routes: bool = False
    """POST /start_profile and /stop_profile, passed on to every engine; false: they do not exist.
    Whoever may send a request may then slow down all engines."""


class Registration(Section, frozen=True, kw_only=True):
    listen: str = "tcp://0.0.0.0:36367"
    """where engines send their heartbeats (ZMQ ROUTER)"""
    ttl_s: float = 12.0
    """an instance not heard of for so long leaves placement; engines beat every 3 s"""
    allow: tuple[str, ...] = ()
    """networks that may register (`10.0.0.0/8`); empty: any"""


class Observe(Section, frozen=True, kw_only=True):
    listen: str = "0.0.0.0:9902"
    """read-only: /metrics, /healthz, /readyz, /envoy/metrics"""


class Admin(Section, frozen=True, kw_only=True):
    listen: str = "127.0.0.1:9900"
    """/instances, /exchanges, /config, /drain, /start_profile, /stop_profile"""


class Envoy(Section, frozen=True, kw_only=True):
    path: str | None = None
    """the Envoy binary; null: from PATH, or beside the Python interpreter"""
    admin_listen: str = "127.0.0.1:9901"
    """`ip:port` of Envoy's admin, which can end it: not off loopback without need"""
    concurrency: int = 0
    """Envoy's worker threads; 0: one per usable core"""
    max_heap_bytes: int = 0
    """Of Envoy's memory; from seven tenths of it on uploads are ended with 503, so that no crowd of
    them takes all there is. 0: half of what the machine has, or of what the control group of this
    process may use. A change restarts Envoy"""


class ExtProc(Section, frozen=True, kw_only=True):
    """How Envoy's questions reach the workers."""

    server: typing.Literal["http2", "grpcio"] = "http2"
    """what serves them: our own HTTP/2, or gRPC's library, which others keep, and which costs
    several times as much for each request (docs/performance.md)"""


class Probe(Section, frozen=True, kw_only=True):
    interval_s: float = 2.0
    """from the start of an instance's probe (`GET /health`) to that of the next"""
    timeout_s: float = 1.0
    """of one probe; three in a row take an instance out"""


class Placement(Section, frozen=True, kw_only=True):
    aggregated_role: typing.Literal["prefill", "decode"] = "prefill"
    """Who serves requests that one KV transfer cannot carry (`n` above 1, several prompts, `echo`).
    decode only where its engine does that right: vLLM 0.33 in READ, 0.32 in WRITE, all with NIXL;
    else prefill."""
    write_legs: typing.Literal["in_series", "at_once"] = "in_series"
    """WRITE: when decode is asked. in_series: after prefill has answered, as in READ; a prefill
    that fails is tried elsewhere. at_once: while prefill computes, and pushes as it goes: the first
    token comes sooner by decode's admission and most of the push. But a decode engine whose client
    leaves, or whose prefill fails, while it waits for a push keeps those KV blocks until it is
    restarted (vLLM 0.32); in series it waits for a moment only. Engines before 0.32 or
    of unknown version, which may not wait for a late decode, are asked at once."""


class Prefill(Section, frozen=True, kw_only=True):
    timeout_s: float = 600.0
    """The whole prefill phase, attempts included; at most 3590. Envoy waits for our reply for
    3600 s, the most it takes, and must not be the first to give up."""
    attempts: int = 2
    """READ only: tries on different slots; 1: no retry"""


class Decode(Section, frozen=True, kw_only=True):
    headers_timeout_s: float = 600.0
    """streamed: until the response headers"""
    idle_timeout_s: float = 600.0
    """streamed: between two bytes, also before the headers, so not below headers_timeout_s"""
    whole_timeout_s: float = 3600.0
    """not streamed: until the answer is whole"""


class Request(Section, frozen=True, kw_only=True):
    upload_timeout_s: float = 60.0
    """for the client to send its whole request"""


class Ejection(Section, frozen=True, kw_only=True):
    failures: int = 3
    """failed requests in a row that take an instance out; a refused connection does at once"""
    backoff_s: float = 5.0
    """then out for at least so long; doubled while it serves nothing between two ejections"""
    backoff_max_s: float = 120.0


class Drain(Section, frozen=True, kw_only=True):
    notice_s: float = 0.0
    """not ready, but still serving, before new requests are refused; 10 in a pod"""
    timeout_s: float = 120.0
    """then at most so long for what is in flight"""


class Engine(Section, frozen=True, kw_only=True):
    api_key_file: str | None = None
    """its content replaces the clients' Authorization towards the engines, and is used by probes"""
    release_kv: bool = False
    """Tell engines from vLLM 0.33 on over ZMQ to free KV blocks that no transfer will fetch or
    fill. Off: they are counted, and in WRITE those of decode are lost until it restarts. MoRI-IO
    only, as the two below."""
    transfer_timeout_s: float = 30.0
    """The engines' own `transfer_timeout`: so long a prefill engine may still push for a leg that
    is over, and no block of decode is freed"""
    defer_timeout_s: float = 60.0
    """The engines' own `defer_timeout`: so long prefill holds blocks that nobody has fetched"""


class StaticInstance(Section, frozen=True, kw_only=True):
    """An instance that does not register."""

    role: typing.Literal["prefill", "decode"]
    url: str
    """`http://host:port`, with or without `/v1`"""
    dp_size: int = 1
    tp_size: int = 1
    transfer_mode: typing.Literal["READ", "WRITE"] = "READ"
    zmq_address: str = ""
    """`host:H,handshake:P,notify:P`, as the engine would register it; MoRI-IO only"""
    models: tuple[str, ...] = ()
    """empty: asked of the instance"""
    connector: ConnectorName | None = None
    """null: the pool's, and nothing else is served"""


class Telemetry(Section, frozen=True, kw_only=True):
    route_headers: bool = True
    """answers carry x-pd-prefill and x-pd-decode: `name#rank`"""
    show_addresses: bool = False
    """...with addresses in place of names"""


class ListenerTuning(Section, frozen=True, kw_only=True):
    backlog: int = 4096
    """of the edge's listening socket; the kernel caps it at net.core.somaxconn"""


class HttpTuning(Section, frozen=True, kw_only=True):
    idle_timeout_s: float = 3600.0
    """an idle client connection is kept for so long"""
    max_body_bytes: int = 64 << 20
    """of a request; more is 413"""
    max_body_bytes_in_flight: int = 1 << 30
    """Of all requests that wait for prefill, shared evenly by the workers; more is 429. A body on
    its way counts as 4 KiB at most until it is there (Envoy bounds those: envoy.max_heap_bytes)"""


class UpstreamTuning(Section, frozen=True, kw_only=True):
    connect_timeout_s: float = 5.0
    """to an engine, of both legs"""
    max_connections: int = 1_000_000
    """of Envoy, to engines and to workers; beyond it 503 `overloaded`, as for the next"""
    max_pending: int = 1_000_000
    """requests that wait for a connection"""


class AccessLogTuning(Section, frozen=True, kw_only=True):
    buffer_interval_ms: int = 200
    """how late Envoy tells that an exchange has ended; its slots count as taken until then"""
    report_interval_s: float = 10.0
    """how often Envoy reports every open exchange"""


class Tuning(Section, frozen=True, kw_only=True):
    """Limits of the edge (design §7)."""

    listener: ListenerTuning = ListenerTuning()
    http: HttpTuning = HttpTuning()
    upstream: UpstreamTuning = UpstreamTuning()
    access_log: AccessLogTuning = AccessLogTuning()


class Config(Section, frozen=True, kw_only=True):
    connector: ConnectorName = "moriio"
    """The KV connector of all engines of this pool, as their `--kv-transfer-config` has it: moriio
    (MoRIIOConnector) or nixl (NixlConnector). Engines with NIXL do not register: name them in
    `instances`."""
    edge: Edge = Edge()
    registration: Registration = Registration()
    observe: Observe = Observe()
    admin: Admin = Admin()
    envoy: Envoy = Envoy()
    run_dir: str | None = None
    """sockets, lock and state; null: a short per-user runtime directory"""
    workers: int = 0
    """0: one per usable core, at most 8"""
    ext_proc: ExtProc = ExtProc()
    probe: Probe = Probe()
    placement: Placement = Placement()
    prefill: Prefill = Prefill()
    decode: Decode = Decode()
    request: Request = Request()
    ejection: Ejection = Ejection()
    drain: Drain = Drain()
    engine: Engine = Engine()
    instances: tuple[StaticInstance, ...] = ()
    telemetry: Telemetry = Telemetry()
    tuning: Tuning = Tuning()
