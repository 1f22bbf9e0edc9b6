"""The sidecar's configuration in a chaos run: short limits, so that everything is over soon."""

from typing import Any

import msgspec

from sidecar.config import Config

WORKERS = 2
WANTED: dict[str, Any] = {
    "registration": {"ttl_s": 3.0},
    "probe": {"interval_s": 0.3, "timeout_s": 0.3},
    "prefill": {"timeout_s": 5.0},
    "decode": {"headers_timeout_s": 5.0, "idle_timeout_s": 6.0, "whole_timeout_s": 8.0},
    "request": {"upload_timeout_s": 5.0},
    "drain": {"timeout_s": 10.0},
    "ejection": {"backoff_s": 1.0, "backoff_max_s": 4.0},
    "engine": {"release_kv": True, "transfer_timeout_s": 1.0},
    "tuning": {"access_log": {"report_interval_s": 2.0}},
}
"""What is wanted of the sidecar; a key that it does not know yet is left out, and said."""


def settings() -> tuple[dict[str, Any], tuple[str, ...]]:
    """The configuration that this sidecar takes, and the wanted keys that it does not know."""
    unknown: list[str] = []
    known = msgspec.to_builtins(Config())
    return _known(WANTED, known, "", unknown), tuple(unknown)


def _known(
    wanted: dict[str, Any], known: dict[str, Any], at: str, unknown: list[str]
) -> dict[str, Any]:
    taken: dict[str, Any] = {}
    for key, value in wanted.items():
        if key not in known:
            unknown.append(f"{at}{key}")
        elif isinstance(value, dict):
            taken[key] = _known(value, known[key], f"{at}{key}.", unknown)
        else:
            taken[key] = value
    return taken
