"""Registration messages of engines: ZMQ frames -> `Instance` (protocol a).

Knows no socket and no registry. Invariant: any frames give an Instance, None (a tolerated HELLO) or
a HeartbeatError whose reason is one of REASONS; nothing else is ever raised.

Shapes, all MessagePack maps with text keys (protocol a):

* A, vLLM up to 0.19: `type="register"`, `role`, `request_address` (a URL, its path varies and is
  dropped), `handshake_port`, `notify_port`, `dp_size`, `tp_size`, `transfer_mode`.
* A0, forks from before the merge: A without the last three.
* B, vLLM from 0.20: `type="P"|"D"`, `http_address` (`IP:PORT`, IPv6 bare), `zmq_address`
  (`host:H,handshake:P,notify:P`), `dp_size`, `tp_size`, `transfer_mode`.

Other keys are ignored, so that later engines may add some.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from sidecar.errors import HeartbeatError
from sidecar.routing.instance import Instance, Role, TransferMode
from sidecar.wire.names import as_ip, join_address, normal_host, parse_port, split_address

REASONS = (
    "frames",
    "size",
    "msgpack",
    "shape",
    "type",
    "address",
    "value",
    "source",
    "full",
    "connector",
)
"""The closed set of reasons: the first seven are found here; `source` (not an allowed network) by
the listener, `full` by the registry, `connector` (not the pool's) by who keeps the pool."""

MAX_PAYLOAD_BYTES = 16 * 1024
"""real ones have under 400 bytes; the socket's own limit is 64 KiB a frame"""
MAX_SIZE = 4096
"""the most ranks believed of one instance; each is a slot in every worker's walk"""

_ROLES = {"P": Role.PREFILL, "D": Role.DECODE}
_SIZE_KEYS = ("dp_size", "tp_size", "transfer_mode")
_decoder = msgspec.msgpack.Decoder(dict[str, Any])


def parse_heartbeat(frames: Sequence[bytes]) -> Instance | None:
    """One message as a ROUTER socket receives it, `[identity, payload]`; None for a HELLO.

    The identity is not looked at: it changes with every TCP connection (protocol a).
    """
    if len(frames) != 2:
        raise HeartbeatError("frames", f"{len(frames)} frames instead of 2")
    record = _decode(frames[1])
    kind = record.get("type")
    if kind == "HELLO":
        return None
    if kind == "register":
        return _shape_a(record)
    if kind in ("P", "D"):
        return _shape_b(record)
    raise HeartbeatError("shape", f"no known shape has type {_short(kind)}")


def _decode(payload: bytes) -> dict[str, Any]:
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise HeartbeatError("size", f"{len(payload)} bytes are over {MAX_PAYLOAD_BYTES}")
    try:
        return _decoder.decode(payload)
    except msgspec.ValidationError as fault:
        raise HeartbeatError("shape", f"not a map with text keys: {fault}") from fault
    # Besides its own errors the decoder lets through these for text that is not UTF-8, for nesting
    # without end, and for times outside the calendar.
    except (msgspec.MsgspecError, RecursionError, ValueError, TypeError, OverflowError) as fault:
        raise HeartbeatError("msgpack", str(fault)[:200]) from fault


def _shape_a(record: Mapping[str, Any]) -> Instance:
    _require(record, "role", "request_address", "handshake_port", "notify_port")
    if not any(key in record for key in _SIZE_KEYS):
        # A0: its engines know one rank only; WRITE is the connector's default mode.
        record = {**record, "dp_size": 1, "tp_size": 1, "transfer_mode": "WRITE"}
    _require(record, *_SIZE_KEYS)
    scheme, host, port = _http_address(_text(record, "request_address"))
    return Instance(
        address=join_address(host, port),
        role=_role(record, "role"),
        transfer_mode=_mode(record),
        dp_size=_size(record, "dp_size"),
        tp_size=_size(record, "tp_size"),
        kv_host=host,
        handshake_port=_port(record, "handshake_port"),
        notify_port=_port(record, "notify_port"),
        scheme=scheme,
    )


def _shape_b(record: Mapping[str, Any]) -> Instance:
    _require(record, "http_address", "zmq_address")
    zmq_address = _text(record, "zmq_address")
    if not any(key in record for key in _SIZE_KEYS) and "handshake:" not in zmq_address:
        raise HeartbeatError(
            "shape",
            "this is a P2pNccl registration (zmq_address is a plain IP:PORT); "
            "only the connectors MoRI-IO and NIXL are served",
        )
    _require(record, *_SIZE_KEYS)
    scheme, host, port = _http_address(_text(record, "http_address"))
    kv_host, handshake_port, notify_port = parse_zmq_address(zmq_address)
    return Instance(
        address=join_address(host, port),
        role=_role(record, "type"),
        transfer_mode=_mode(record),
        dp_size=_size(record, "dp_size"),
        tp_size=_size(record, "tp_size"),
        kv_host=kv_host,
        handshake_port=handshake_port,
        notify_port=notify_port,
        scheme=scheme,
    )


def parse_zmq_address(text: str) -> tuple[str, int, int]:
    """`host:H,handshake:P,notify:P` to (bare host, handshake port, notify port).

    Split at commas, each part at its first colon, so that H may be bare IPv6; other keys are
    ignored (protocol b). Raises HeartbeatError(`address`).
    """
    parts = {key: value for key, _, value in (part.partition(":") for part in text.split(","))}
    missing = [key for key in ("host", "handshake", "notify") if key not in parts]
    if missing:
        raise HeartbeatError("address", f"zmq_address {_short(text)} lacks {', '.join(missing)}")
    try:
        return (
            normal_host(parts["host"]),
            parse_port(parts["handshake"]),
            parse_port(parts["notify"]),
        )
    except ValueError as fault:
        raise HeartbeatError("address", f"zmq_address: {fault}") from fault


def _http_address(text: str) -> tuple[str, str, int]:
    """`[http[s]://]host:port[/path]` to (scheme, host, port); the path is dropped (protocol a)."""
    scheme, mark, rest = text.partition("://")
    if not mark:
        scheme, rest = "http", text
    if scheme.lower() not in ("http", "https"):
        raise HeartbeatError("address", f"scheme {_short(scheme)} is neither http nor https")
    try:
        host, port = split_address(rest.partition("/")[0])
    except ValueError as fault:
        raise HeartbeatError("address", str(fault)) from fault
    return scheme.lower(), host, port


def _require(record: Mapping[str, Any], *keys: str) -> None:
    missing = [key for key in keys if key not in record]
    if missing:
        raise HeartbeatError("shape", f"a {_short(record['type'])} lacks {', '.join(missing)}")


def _text(record: Mapping[str, Any], key: str) -> str:
    value = record[key]
    if not isinstance(value, str):
        raise HeartbeatError("type", f"{key} is {_short(value)}, not text")
    return value


def _whole(record: Mapping[str, Any], key: str) -> int:
    value = record[key]
    if not isinstance(value, int) or isinstance(value, bool):
        raise HeartbeatError("type", f"{key} is {_short(value)}, not a whole number")
    return value


def _size(record: Mapping[str, Any], key: str) -> int:
    value = _whole(record, key)
    if not 1 <= value <= MAX_SIZE:
        raise HeartbeatError("value", f"{key} {value} is not within 1..{MAX_SIZE}")
    return value


def _port(record: Mapping[str, Any], key: str) -> int:
    # The port comes from the engine's configuration as it was written, at times as text.
    if isinstance(record[key], str):
        try:
            return parse_port(record[key])
        except ValueError as fault:
            raise HeartbeatError("value", f"{key}: {fault}") from fault
    value = _whole(record, key)
    if not 1 <= value <= 65535:
        raise HeartbeatError("value", f"{key} {value} is not within 1..65535")
    return value


def _role(record: Mapping[str, Any], key: str) -> Role:
    role = _ROLES.get(_text(record, key))
    if role is None:
        raise HeartbeatError("value", f"{key} {_short(record[key])} is neither P nor D")
    return role


def _mode(record: Mapping[str, Any]) -> TransferMode:
    text = _text(record, "transfer_mode")
    try:
        return TransferMode(text.upper())
    except ValueError as fault:
        raise HeartbeatError("value", f"transfer_mode {_short(text)} is not known") from fault


def _short(value: object) -> str:
    """A value as a log line may show it: one line, visible characters only, not long."""
    return ascii(value)[:80]


def host_differs(instance: Instance, sender_ip: str) -> bool:
    """Whether a message came from another address than the one it names; names never differ."""
    host, sender = as_ip(split_address(instance.address)[0]), as_ip(sender_ip)
    return host is not None and sender is not None and host != sender
