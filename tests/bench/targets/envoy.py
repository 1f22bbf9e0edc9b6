"""Plain Envoy: one leg to the decode engines, no ext_proc, no access log, nothing but its router.

What no router with Envoy as its edge can be below. It has the threads that `pd-sidecar up` gives
its own.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sidecar.app.usable_cores import usable_cores
from sidecar.edge.envoy_process import find_envoy
from tests.bench.program import Program
from tests.bench.targets.target import Target
from tests.ports import free_port

TYPE = "type.googleapis.com/envoy.extensions"
MANAGER = f"{TYPE}.filters.network.http_connection_manager.v3.HttpConnectionManager"
UNLIMITED = 1_000_000


class PlainEnvoy(Target):
    name = "envoy"
    has_prefill_leg = False

    def __init__(self, decode_addresses: Sequence[str], folder: Path) -> None:
        port = free_port()
        self.address = f"127.0.0.1:{port}"
        path = folder / "plain-envoy.json"
        path.write_text(json.dumps(bootstrap(port, decode_addresses)))
        command = [str(find_envoy(None)), "--config-path", str(path), "--disable-hot-restart"]
        command += ["--concurrency", str(usable_cores()), "--log-level", "error"]
        self._program = Program("plain-envoy", command, folder)

    def processes(self) -> dict[int, str]:
        return {self._program.pid: "Envoy"}

    def last_words(self) -> str:
        return self._program.last_words()

    def close(self) -> None:
        self._program.close()


def socket_address(address: str) -> dict[str, Any]:
    host, _, port = address.rpartition(":")
    return {"socket_address": {"address": host, "port_value": int(port)}}


def bootstrap(port: int, decode_addresses: Sequence[str]) -> dict[str, Any]:
    route = {"match": {"prefix": "/"}, "route": {"cluster": "decode", "timeout": "0s"}}
    manager = {
        "@type": MANAGER,
        "stat_prefix": "edge",
        "stream_idle_timeout": "0s",
        "generate_request_id": False,
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
        "http_filters": [
            {
                "name": "router",
                "typed_config": {"@type": f"{TYPE}.filters.http.router.v3.Router"},
            }
        ],
    }
    limits = ("max_connections", "max_pending_requests", "max_requests", "max_retries")
    endpoints = [{"endpoint": {"address": socket_address(one)}} for one in decode_addresses]
    return {
        "static_resources": {
            "listeners": [
                {
                    "name": "edge",
                    "address": socket_address(f"127.0.0.1:{port}"),
                    "tcp_backlog_size": 4096,
                    "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}],
                }
            ],
            "clusters": [
                {
                    "name": "decode",
                    "type": "STATIC",
                    "connect_timeout": "5s",
                    "circuit_breakers": {"thresholds": [dict.fromkeys(limits, UNLIMITED)]},
                    "load_assignment": {
                        "cluster_name": "decode",
                        "endpoints": [{"lb_endpoints": endpoints}],
                    },
                }
            ],
        }
    }
