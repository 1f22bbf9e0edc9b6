"""What may be wrong with values that have the right type."""

import ipaddress
import re

from sidecar.config.keys import WORKERS_MAX, Config, StaticInstance

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?")
"""As browsers write it (RFC 6454 §6.2); compared byte by byte"""


HEAP_LEAST, HEAP_MOST = 64 << 20, 1 << 50
"""An idle Envoy takes 15 MiB of it"""


def range_faults(config: Config) -> list[str]:
    """Values that are wrong by themselves."""
    faults = [
        f"{where}: {value} is not between {low:g} and {high:g}"
        for where, low, value, high in _ranges(config)
        if not low <= value <= high
    ]
    heap = config.envoy.max_heap_bytes
    if heap and not HEAP_LEAST <= heap <= HEAP_MOST:
        faults.append(
            f"envoy.max_heap_bytes: {heap} is neither 0 nor between {HEAP_LEAST} and {HEAP_MOST}"
        )
    for where, listen in _listeners(config):
        if port_of(listen) is None:
            faults.append(f"{where}: expected ip:port, got {listen!r}")
    for origin in config.edge.cors.allow_origins:
        if origin != "*" and not _ORIGIN.fullmatch(origin):
            faults.append(
                "edge.cors.allow_origins: expected scheme://host[:port], lower case, or *, "
                f"got {origin!r}"
            )
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
    if config.edge.profile_routes and not _is_address(config.admin.listen):
        faults.append(
            "edge.profile_routes: Envoy needs an address in admin.listen, which is "
            f"{config.admin.listen}"
        )
    http = config.tuning.http
    if http.max_body_bytes_in_flight < http.max_body_bytes:
        faults.append(
            f"tuning.http.max_body_bytes_in_flight: {http.max_body_bytes_in_flight} is below "
            f"tuning.http.max_body_bytes ({http.max_body_bytes})"
        )
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
    return faults + _connector_faults(config)


def _connector_faults(config: Config) -> list[str]:
    """What does not go with the pool's connector."""
    pool, faults = config.connector, []
    if pool == "nixl" and config.engine.release_kv:
        faults.append(
            "engine.release_kv: notices are MoRI-IO's; with connector: nixl engines free blocks "
            "that nobody fetches by themselves, when their lease is over (kv_lease_duration)"
        )
    for i, instance in enumerate(config.instances):
        own = instance.connector or pool
        if own != pool:
            faults.append(
                f"instances[{i}].connector: {own} in a pool of connector {pool}: one pool has one "
                "connector; run a second router for the others"
            )
        elif own == "nixl":
            faults += _nixl_faults(f"instances[{i}]", instance)
        elif instance.dp_size > 1 and instance.tp_size > 1:
            faults.append(
                f"instances[{i}]: dp_size and tp_size are both above 1, which MoRI-IO cannot "
                "address"
            )
    return faults


def _nixl_faults(where: str, instance: StaticInstance) -> list[str]:
    faults = []
    if instance.transfer_mode == "WRITE":
        faults.append(
            f"{where}.transfer_mode: WRITE is MoRI-IO's; with connector: nixl decode pulls, after "
            "prefill has answered (leave it out, or READ)"
        )
    if instance.zmq_address:
        faults.append(
            f"{where}.zmq_address: is MoRI-IO's; with connector: nixl decode finds prefill by what "
            "prefill answers (leave it out)"
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


def _is_address(listen: str) -> bool:
    try:
        ipaddress.ip_address(listen.rpartition(":")[0].strip("[]"))
    except ValueError:
        return False
    return True


def port_of(listen: str) -> int | None:
    """The port of `ip:port` (IPv6 in brackets); None if it is not one."""
    host, _, port = listen.rpartition(":")
    is_port = port.isdecimal() and len(port) <= 5 and int(port) < 65536
    return int(port) if host and is_port else None


def _ranges(config: Config) -> list[tuple[str, float, float, float]]:
    day = 86400.0
    log = config.tuning.access_log
    return [
        ("edge.cors.max_age_s", 0, config.edge.cors.max_age_s, day),
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
        ("engine.transfer_timeout_s", 0, config.engine.transfer_timeout_s, day),
        ("engine.defer_timeout_s", 0, config.engine.defer_timeout_s, day),
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
