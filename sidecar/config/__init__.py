"""The configuration of one sidecar (design §2)."""

from sidecar.config.faults import port_of
from sidecar.config.keys import WORKERS_MAX, Config, Engine, StaticInstance, Telemetry
from sidecar.config.reading import load

__all__ = ["WORKERS_MAX", "Config", "Engine", "StaticInstance", "Telemetry", "load", "port_of"]
