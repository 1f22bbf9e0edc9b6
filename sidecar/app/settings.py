"""From the configuration to what each part takes."""

from pathlib import Path

import msgspec

from sidecar.app.memory_limit import memory_limit
from sidecar.app.usable_cores import usable_cores
from sidecar.config import WORKERS_MAX, Config, StaticInstance, port_of
from sidecar.edge.run_dir import RunDir
from sidecar.errors import ConfigError, HeartbeatError
from sidecar.exchange.situation import Limits
from sidecar.routing.instance import Connector, Instance, Role, TransferMode
from sidecar.routing.standing import EjectionRule
from sidecar.wire.heartbeat import parse_zmq_address
from sidecar.wire.names import join_address, split_address
from sidecar.xds.settings import EdgeSettings

_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Where to connect to what listens on every address"""


_HEAP_STEP = 64 << 20
"""So that a few bytes more or less do not restart Envoy"""


def _half(memory: int) -> int:
    return max(memory // 2 // _HEAP_STEP, 2) * _HEAP_STEP


def workers_of(config: Config) -> int:
    """0 in the configuration: one per usable core, at most 8."""
    return config.workers or min(WORKERS_MAX, usable_cores())


def edge_settings(config: Config, run_dir: RunDir) -> EdgeSettings:
    listen_host, listen_port = host_port(config.edge.listen)
    admin_host, admin_port = host_port(config.envoy.admin_listen)
    profile_host, profile_port = host_port(config.admin.listen)
    tuning = config.tuning
    return EdgeSettings(
        node_id=node_id(run_dir),
        control_socket=str(run_dir.control_socket),
        worker_sockets=tuple(str(run_dir.worker_socket(i)) for i in range(workers_of(config))),
        listen_host=listen_host,
        listen_port=listen_port,
        admin_host=admin_host,
        admin_port=admin_port,
        cors_origins=config.edge.cors.allow_origins,
        cors_max_age_s=config.edge.cors.max_age_s,
        profile_routes=config.edge.profile_routes,
        profile_host=_LOOPBACK.get(profile_host, profile_host),
        profile_port=profile_port,
        max_heap_bytes=config.envoy.max_heap_bytes or _half(memory_limit()),
        listener_backlog=tuning.listener.backlog,
        http_idle_timeout_s=tuning.http.idle_timeout_s,
        max_body_bytes=tuning.http.max_body_bytes,
        upload_timeout_s=config.request.upload_timeout_s,
        decode_headers_timeout_s=config.decode.headers_timeout_s,
        decode_idle_timeout_s=config.decode.idle_timeout_s,
        decode_whole_timeout_s=config.decode.whole_timeout_s,
        upstream_connect_timeout_s=tuning.upstream.connect_timeout_s,
        upstream_max_connections=tuning.upstream.max_connections,
        upstream_max_pending=tuning.upstream.max_pending,
        access_log_path=config.edge.access_log_path,
        access_log_buffer_interval_ms=tuning.access_log.buffer_interval_ms,
        access_log_report_interval_s=tuning.access_log.report_interval_s,
    )


def node_id(run_dir: RunDir) -> str:
    """Envoy's name: one for each run directory, so that only our own Envoy is ever adopted."""
    return f"pd-sidecar:{run_dir.path}"


def host_port(listen: str) -> tuple[str, int]:
    port = port_of(listen)
    assert port is not None, "checked when the configuration was loaded"
    return listen.rpartition(":")[0].strip("[]"), port


def body_budget_bytes(config: Config) -> int:
    """Of one worker: Envoy spreads requests over them evenly. Never less than one body may have, or
    a large one was served only while there is no other."""
    http = config.tuning.http
    return max(http.max_body_bytes, http.max_body_bytes_in_flight // workers_of(config))


def limits(config: Config) -> Limits:
    return Limits(
        aggregated_role=Role(config.placement.aggregated_role),
        writes_in_series=config.placement.write_legs == "in_series",
        prefill_timeout_s=config.prefill.timeout_s,
        prefill_attempts=config.prefill.attempts,
        max_body_bytes=config.tuning.http.max_body_bytes,
        shows_route=config.telemetry.route_headers,
        shows_addresses=config.telemetry.show_addresses,
        engine_api_key=api_key(config),
    )


def ejection_rule(config: Config) -> EjectionRule:
    return EjectionRule(**msgspec.structs.asdict(config.ejection))


def api_key(config: Config) -> str | None:
    """The content of `engine.api_key_file`; raises ConfigError if it holds no key."""
    path = config.engine.api_key_file
    if path is None:
        return None
    try:
        key = Path(path).read_bytes().strip()
    except OSError as error:
        raise ConfigError([f"engine.api_key_file: {path}: {error.strerror}"]) from None
    if not key or any(not 0x20 < byte < 0x7F for byte in key):
        raise ConfigError([f"engine.api_key_file: {path}: expected one line of visible ASCII"])
    return key.decode()


def static_instances(config: Config) -> list[Instance]:
    """Raises ConfigError naming every entry that is not an instance."""
    faults: list[str] = []
    instances: dict[str, Instance] = {}
    for i, entry in enumerate(config.instances):
        try:
            instance = _static_instance(entry, Connector(entry.connector or config.connector))
        except (ValueError, HeartbeatError) as error:
            faults.append(f"instances[{i}]: {error}")
            continue
        if instance.address in instances:
            faults.append(f"instances[{i}]: {instance.address} is in the list already")
        instances[instance.address] = instance
    if faults:
        raise ConfigError(faults)
    return list(instances.values())


def _static_instance(entry: StaticInstance, connector: Connector) -> Instance:
    scheme, _, rest = entry.url.partition("://")
    if scheme not in ("http", "https") or not rest:
        raise ValueError(f"url: expected http://host:port, got {entry.url!r}")
    host, port = split_address(rest.partition("/")[0])
    kv_host, handshake_port, notify_port = host, 0, 0
    if connector is Connector.NIXL:
        kv_host = ""
    elif entry.zmq_address:
        kv_host, handshake_port, notify_port = parse_zmq_address(entry.zmq_address)
    return Instance(
        address=join_address(host, port),
        role=Role(entry.role),
        transfer_mode=TransferMode(entry.transfer_mode),
        connector=connector,
        dp_size=entry.dp_size,
        tp_size=entry.tp_size,
        kv_host=kv_host,
        handshake_port=handshake_port,
        notify_port=notify_port,
        is_static=True,
        scheme=scheme,
    )
