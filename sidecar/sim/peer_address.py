"""Where a leg says its peer is: embedded in X-Request-Id, or explicit keys (protocol.md b, c)."""

import re
from dataclasses import dataclass

from sidecar.sim.kv_params import KvParams
from sidecar.sim.options import SimOptions

# vLLM moriio_common.py 453-456, applied with .search.
_PREFILL = re.compile(r"___prefill_addr_(.+?)___decode_addr_")
_DECODE = re.compile(r"___decode_addr_(.+)_[0-9a-f]{32}(?:-.*)?$")


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """A peer instance: host, handshake port and notify port of its rank 0."""

    host: str
    handshake_port: int
    notify_port: int


def find_peer(options: SimOptions, request_id: str, params: KvParams) -> PeerAddress | None:
    """The peer of a leg on this engine, or None where vLLM would raise in its scheduler.

    0.20 to 0.31 knows only the embedded form, from 0.32 on it wins over the explicit keys,
    up to 0.19 only the keys are read.
    """
    if options.reads_embedded_address:
        pattern = _DECODE if options.role == "prefill" else _PREFILL
        found = pattern.search(request_id)
        embedded = parse_zmq_address(found[1]) if found else None
        if embedded is not None or options.needs_embedded_address:
            return embedded
    host, handshake, notify = (
        params.remote_host,
        params.remote_handshake_port,
        params.remote_notify_port,
    )
    if not host or handshake is None or notify is None:
        return None
    return PeerAddress(host, handshake, notify)


def parse_zmq_address(text: str) -> PeerAddress | None:
    """Read `host:IP,handshake:PORT,notify:PORT`; None if a part is missing or no number."""
    parts = dict(segment.split(":", 1) for segment in text.split(",") if ":" in segment)
    try:
        return PeerAddress(parts["host"], int(parts["handshake"]), int(parts["notify"]))
    except (KeyError, ValueError):
        return None
