"""URLs of engines, as a client takes them apart."""

import ipaddress
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import urlsplit


class HttpUrl(NamedTuple):
    is_tls: bool
    host: str
    """IPv6 bare"""
    is_name: bool
    """else an address"""
    port: int
    netloc: str
    """for the host header"""
    path: str
    """with the query"""

    @property
    def peer(self) -> tuple[bool, str, int]:
        """A connection for one URL serves all that have the same."""
        return self.is_tls, self.host, self.port


@lru_cache(maxsize=4096)
def read(url: str) -> HttpUrl | None:
    """None for what is no URL of an HTTP server."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        return None
    if parts.scheme not in ("http", "https") or not host:
        return None
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return HttpUrl(parts.scheme == "https", host, _is_name(host), port, parts.netloc, path)


def _is_name(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return True
    return False
