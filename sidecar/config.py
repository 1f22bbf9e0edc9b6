"""The configuration: one YAML file, overridden by the environment, overridden by flags (design §2).

Every key is also `PD_SIDECAR__SECTION__KEY` in the environment. Validated once and whole: `load`
reports every fault at once, each with its key. The environment and the file's text are arguments.
"""

import ipaddress
import types
import typing
from collections.abc import Mapping

import msgspec
import yaml

from sidecar.errors import ConfigError

ENVIRONMENT_PREFIX = "PD_SIDECAR__"
WORKERS_MAX = 8
"""worker processes"""


class _Section(msgspec.Struct, frozen=True, kw_only=True):
    """A group of keys."""


class Edge(_Section, frozen=True, kw_only=True):
    listen: str = "0.0.0.0:10001"
    """`ip:port` of the HTTP edge (Envoy)"""
    access_log_path: str | None = None
    """Envoy also writes one JSON line a request to this file; null: it does not"""


class Registration(_Section, frozen=True, kw_only=True):
    listen: str = "tcp://0.0.0.0:36367"
    """where engines send their heartbeats (ZMQ ROUTER)"""
    ttl_s: float = 12.0
    """an instance not heard of for so long leaves placement; engines beat every 3 s"""
    allow: tuple[str, ...] = ()
    """networks that may register (`10.0.0.0/8`); empty: any"""


class Observe(_Section, frozen=True, kw_only=True):
    listen: str = "0.0.0.0:9902"
    """read-only: /metrics, /healthz, /readyz, /envoy/metrics"""


class Admin(_Section, frozen=True, kw_only=True):
    listen: str = "127.0.0.1:9900"
    """/instances, /exchanges, /config, /drain"""


class Envoy(_Section, frozen=True, kw_only=True):
    path: str | None = None
    """the Envoy binary; null: from PATH, or beside the Python interpreter"""
    admin_listen: str = "127.0.0.1:9901"
    """`ip:port` of Envoy's admin, which can end it: not off loopback without need"""
    concurrency: int = 0
    """Envoy's worker threads; 0: one per usable core"""


class Probe(_Section, frozen=True, kw_only=True):
    interval_s: float = 2.0
    """from the start of an instance's probe (`GET /health`) to that of the next"""
    timeout_s: float = 1.0
    """of one probe; three in a row take an instance out"""


class Prefill(_Section, frozen=True, kw_only=True):
    timeout_s: float = 600.0
    """The whole prefill phase, attempts included; at most 3590. Envoy waits for our reply for
    3600 s, the most it takes, and must not be the first to give up."""
    attempts: int = 2
    """READ only: tries on different slots; 1: no retry"""


class Decode(_Section, frozen=True, kw_only=True):
    headers_timeout_s: float = 600.0
    """streamed: until the response headers"""
    idle_timeout_s: float = 600.0
    """streamed: between two bytes, also before the headers, so not below headers_timeout_s"""
    whole_timeout_s: float = 3600.0
    """not streamed: until the answer is whole"""


class Request(_Section, frozen=True, kw_only=True):
    upload_timeout_s: float = 60.0
    """for the client to send its whole request"""


class Ejection(_Section, frozen=True, kw_only=True):
    failures: int = 3
    """failed requests in a row that take an instance out; a refused connection does at once"""
    backoff_s: float = 5.0
    """then out for at least so long; doubled while it serves nothing between two ejections"""
    backoff_max_s: float = 120.0


class Drain(_Section, frozen=True, kw_only=True):
    notice_s: float = 0.0
    """not ready, but still serving, before new requests are refused; 10 in a pod"""
    timeout_s: float = 120.0
    """then at most so long for what is in flight"""


class Engine(_Section, frozen=True, kw_only=True):
    api_key_file: str | None = None
    """its content replaces the clients' Authorization towards the engines, and is used by probes"""


class StaticInstance(_Section, frozen=True, kw_only=True):
    """An instance that does not register."""

    role: typing.Literal["prefill", "decode"]
    url: str
    """`http://host:port`, with or without `/v1`"""
    dp_size: int = 1
    tp_size: int = 1
    transfer_mode: typing.Literal["READ", "WRITE"] = "READ"
    zmq_address: str = ""
    """`host:H,handshake:P,notify:P`, as the engine would register it"""
    models: tuple[str, ...] = ()
    """empty: asked of the instance"""


class Telemetry(_Section, frozen=True, kw_only=True):
    route_headers: bool = True
    """answers carry x-pd-prefill and x-pd-decode: `name#rank`"""
    show_addresses: bool = False
    """...with addresses in place of names"""


class ListenerTuning(_Section, frozen=True, kw_only=True):
    backlog: int = 4096
    """of the edge's listening socket; the kernel caps it at net.core.somaxconn"""


class HttpTuning(_Section, frozen=True, kw_only=True):
    idle_timeout_s: float = 3600.0
    """an idle client connection is kept for so long"""
    max_body_bytes: int = 64 << 20
    """of a request; more is 413"""


class UpstreamTuning(_Section, frozen=True, kw_only=True):
    connect_timeout_s: float = 5.0
    """to an engine, of both legs"""
    max_connections: int = 1_000_000
    """of Envoy, to engines and to workers; beyond it 503 `overloaded`, as for the next"""
    max_pending: int = 1_000_000
    """requests that wait for a connection"""


class AccessLogTuning(_Section, frozen=True, kw_only=True):
    buffer_interval_ms: int = 200
    """how late Envoy tells that an exchange has ended; its slots count as taken until then"""
    report_interval_s: float = 10.0
    """how often Envoy reports every open exchange"""


class Tuning(_Section, frozen=True, kw_only=True):
    """Limits of the edge (design §7)."""

    listener: ListenerTuning = ListenerTuning()
    http: HttpTuning = HttpTuning()
    upstream: UpstreamTuning = UpstreamTuning()
    access_log: AccessLogTuning = AccessLogTuning()


class Config(_Section, frozen=True, kw_only=True):
    edge: Edge = Edge()
    registration: Registration = Registration()
    observe: Observe = Observe()
    admin: Admin = Admin()
    envoy: Envoy = Envoy()
    run_dir: str | None = None
    """sockets, lock and state; null: a short per-user runtime directory"""
    workers: int = 0
    """0: one per usable core, at most 8"""
    probe: Probe = Probe()
    prefill: Prefill = Prefill()
    decode: Decode = Decode()
    request: Request = Request()
    ejection: Ejection = Ejection()
    drain: Drain = Drain()
    engine: Engine = Engine()
    instances: tuple[StaticInstance, ...] = ()
    telemetry: Telemetry = Telemetry()
    tuning: Tuning = Tuning()


def load(text: str, environment: Mapping[str, str], flags: Mapping[str, object]) -> Config:
    """The configuration of a file's `text` (empty: none), the environment and flags.

    `flags` maps dotted keys (`edge.listen`) to values; None values are left out. Raises ConfigError
    with every fault.
    """
    faults: list[str] = []
    try:
        tree = yaml.safe_load(text)
    except yaml.YAMLError as error:
        where = " ".join(str(error).replace('"<unicode string>", ', "").split())
        raise ConfigError([f"the configuration is not YAML: {where}"]) from None
    tree = {} if tree is None else tree  # no file, or one of comments alone
    if not isinstance(tree, dict):
        raise ConfigError(["the configuration must be a map of sections"])
    for name, value in sorted(environment.items()):
        if name.startswith(ENVIRONMENT_PREFIX):
            path = name.removeprefix(ENVIRONMENT_PREFIX).lower().split("__")
            _put(tree, path, _Written(value), faults)
    for key, flag in flags.items():
        if flag is not None:
            _put(tree, key.split("."), flag, faults)
    # Never None: every key of Config has a default.
    config = typing.cast("Config", _build(Config, tree, "", faults))
    faults = (faults + range_faults(config)) or cross_faults(config)
    if faults:
        raise ConfigError(faults)
    return config


class _Written(str):
    """A value as it stands in the environment: text where the key takes text, else YAML."""

    __slots__ = ()

    def read(self, hint: typing.Any) -> object:
        is_optional = isinstance(hint, types.UnionType)
        if is_optional and self in ("", "null"):
            return None
        if hint is str or (is_optional and str in typing.get_args(hint)):
            return str(self)
        try:
            return yaml.safe_load(self)
        except yaml.YAMLError:
            return str(self)


def _put(tree: dict[str, object], path: list[str], value: object, faults: list[str]) -> None:
    node = tree
    for part in path[:-1]:
        if node.get(part) is None:
            node[part] = {}
        child = node[part]
        if not isinstance(child, dict):
            faults.append(f"{'.'.join(path)}: {part} is not a section")
            return
        node = child
    node[path[-1]] = value


def _build(kind: type[_Section], tree: object, at: str, faults: list[str]) -> _Section | None:
    """`tree` as a `kind`, faults appended with their keys. What is wrong keeps its default; None:
    what is missing has none."""
    if tree is None:
        tree = {}
    if not isinstance(tree, dict):
        faults.append(f"{at.rstrip('.')}: expected a map of keys, got {tree!r}")
        tree = {}
    hints = typing.get_type_hints(kind)
    values: dict[str, object] = {}
    for key, value in tree.items():
        where = f"{at}{key}"
        if key not in hints:
            known = ", ".join(sorted(hints))
            faults.append(f"{where}: unknown key (known here: {known})")
        else:
            try:
                values[str(key)] = _value(hints[key], value, where, faults)
            except msgspec.ValidationError:
                faults.append(f"{where}: expected {_words(hints[key])}, got {value!r}")
    required = {f.name for f in msgspec.structs.fields(kind) if f.required}
    faults += [f"{at}{name}: missing" for name in sorted(required - tree.keys())]
    return kind(**values) if required <= values.keys() else None


def _value(hint: typing.Any, value: object, where: str, faults: list[str]) -> object:
    """`value` as a `hint`; raises msgspec.ValidationError where it is none."""
    if isinstance(value, _Written):
        value = value.read(hint)
    if isinstance(hint, type) and issubclass(hint, _Section):
        return _build(hint, value, f"{where}.", faults)
    if hint == tuple[StaticInstance, ...]:
        items = msgspec.convert(value, list[object])
        built = [
            _build(StaticInstance, item, f"{where}[{i}].", faults) for i, item in enumerate(items)
        ]
        return tuple(item for item in built if item is not None)
    return msgspec.convert(value, hint)


def _words(hint: typing.Any) -> str:
    names = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
    if isinstance(hint, types.UnionType):
        return " or ".join(_words(part) for part in typing.get_args(hint))
    if hint is type(None):
        return "null"
    if hint == tuple[StaticInstance, ...]:
        return "a list of instances"
    if typing.get_origin(hint) is tuple:
        return "a list of " + _words(typing.get_args(hint)[0])
    if typing.get_origin(hint) is typing.Literal:
        return "one of " + ", ".join(map(str, typing.get_args(hint)))
    return names.get(hint, str(hint))


def range_faults(config: Config) -> list[str]:
    """Values that are wrong by themselves."""
    faults = [
        f"{where}: {value} is not between {low:g} and {high:g}"
        for where, low, value, high in _ranges(config)
        if not low <= value <= high
    ]
    for where, listen in _listeners(config):
        if port_of(listen) is None:
            faults.append(f"{where}: expected ip:port, got {listen!r}")
    for network in config.registration.allow:
        try:
            ipaddress.ip_network(network, strict=False)
        except ValueError:
            faults.append(f"registration.allow: expected networks, got {network!r}")
    return faults


def cross_faults(config: Config) -> list[str]:
    """What two keys say together."""
    faults = []
    if config.decode.idle_timeout_s < config.decode.headers_timeout_s:
        faults.append(
            "decode.idle_timeout_s: also runs before the response headers, so it must not be below "
            "decode.headers_timeout_s"
        )
    if config.ejection.backoff_max_s < config.ejection.backoff_s:
        faults.append("ejection.backoff_max_s: is below ejection.backoff_s")
    log = config.tuning.access_log
    if log.buffer_interval_ms > log.report_interval_s * 1000:
        faults.append(
            "tuning.access_log.buffer_interval_ms: reports would come later than "
            "tuning.access_log.report_interval_s, and open exchanges would count as lost"
        )
    keys: dict[str, str] = {}
    for where, listen in _listeners(config):
        if listen in keys and port_of(listen):
            faults.append(f"{where}: {listen} is also {keys[listen]}")
        keys[listen] = where
    for i, instance in enumerate(config.instances):
        if instance.dp_size > 1 and instance.tp_size > 1:
            faults.append(
                f"instances[{i}]: dp_size and tp_size are both above 1, which MoRI-IO cannot "
                "address"
            )
    return faults


def _listeners(config: Config) -> list[tuple[str, str]]:
    return [
        ("edge.listen", config.edge.listen),
        ("registration.listen", config.registration.listen.removeprefix("tcp://")),
        ("observe.listen", config.observe.listen),
        ("admin.listen", config.admin.listen),
        ("envoy.admin_listen", config.envoy.admin_listen),
    ]


def port_of(listen: str) -> int | None:
    """The port of `ip:port` (IPv6 in brackets); None if it is not one."""
    host, _, port = listen.rpartition(":")
    return int(port) if host and port.isdecimal() and int(port) < 65536 else None


def _ranges(config: Config) -> list[tuple[str, float, float, float]]:
    day = 86400.0
    log = config.tuning.access_log
    return [
        ("workers", 0, config.workers, WORKERS_MAX),
        ("registration.ttl_s", 0.1, config.registration.ttl_s, day),
        ("probe.interval_s", 0.05, config.probe.interval_s, 3600),
        ("probe.timeout_s", 0.01, config.probe.timeout_s, 3600),
        ("prefill.timeout_s", 0.1, config.prefill.timeout_s, 3590),
        ("prefill.attempts", 1, config.prefill.attempts, 10),
        ("decode.headers_timeout_s", 0.1, config.decode.headers_timeout_s, day),
        ("decode.idle_timeout_s", 0.1, config.decode.idle_timeout_s, day),
        ("decode.whole_timeout_s", 0.1, config.decode.whole_timeout_s, day),
        ("request.upload_timeout_s", 0.1, config.request.upload_timeout_s, day),
        ("ejection.failures", 1, config.ejection.failures, 1_000_000),
        ("ejection.backoff_s", 0, config.ejection.backoff_s, 3600),
        ("ejection.backoff_max_s", 0, config.ejection.backoff_max_s, day),
        ("drain.notice_s", 0, config.drain.notice_s, 3600),
        ("drain.timeout_s", 0, config.drain.timeout_s, day),
        ("envoy.concurrency", 0, config.envoy.concurrency, 1024),
        ("tuning.listener.backlog", 1, config.tuning.listener.backlog, 65535),
        ("tuning.http.idle_timeout_s", 1, config.tuning.http.idle_timeout_s, 31 * day),
        ("tuning.http.max_body_bytes", 1, config.tuning.http.max_body_bytes, (1 << 32) - (1 << 17)),
        ("tuning.upstream.connect_timeout_s", 0.01, config.tuning.upstream.connect_timeout_s, 600),
        ("tuning.upstream.max_connections", 1, config.tuning.upstream.max_connections, 4e9),
        ("tuning.upstream.max_pending", 1, config.tuning.upstream.max_pending, 4e9),
        ("tuning.access_log.buffer_interval_ms", 10, log.buffer_interval_ms, 60_000),
        ("tuning.access_log.report_interval_s", 0.1, log.report_interval_s, 3600),
        *((f"instances[{i}].dp_size", 1, x.dp_size, 4096) for i, x in enumerate(config.instances)),
        *((f"instances[{i}].tp_size", 1, x.tp_size, 4096) for i, x in enumerate(config.instances)),
    ]
