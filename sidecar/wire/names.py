"""Host and port names: text <-> (host, port), IPv6 included.

Knows nothing of what is reached there. Invariant: hosts inside the program are bare (`::1`), and an
address in text is `host:port` with IPv6 in brackets (`[::1]:80`).
"""

import re
from ipaddress import IPv4Address, IPv6Address, ip_address

MAX_HOST_CHARS = 253
"""the longest name DNS carries (RFC 1035 §2.3.4)"""

_NAME = re.compile(r"[a-z0-9_](?:[a-z0-9_.-]*[a-z0-9_])?\.?")
_LAST_LABEL_IS_NUMBER = re.compile(r"(?:^|\.)(?:\d+|0x[0-9a-f]*)\.?$")


def split_address(text: str) -> tuple[str, int]:
    """`host:port` to (normal host, port).

    Takes a name, IPv4, IPv6 in brackets, and bare IPv6 as vLLM writes it (`IP:PORT`, protocol b):
    whatever follows the last colon is the port. Raises ValueError that says what is wrong.
    """
    host, colon, port = text.rpartition(":")
    if not colon:
        raise ValueError(f"no port in {text!r}")
    return normal_host(host), parse_port(port)


def join_address(host: str, port: int) -> str:
    """(host, port) to `host:port`; an IPv6 host, bare or bracketed, gets its brackets."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def parse_port(text: str) -> int:
    """Decimal text to 1..65535, or ValueError. No sign, no space, no digit outside ASCII."""
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and 1 <= int(text) <= 65535):
        raise ValueError(f"port {text[:32]!r} is not within 1..65535")
    return int(text)


def normal_host(text: str) -> str:
    """The one spelling of a host: lower case, IPv6 compressed and bare, mapped IPv4 as IPv4.

    Raises ValueError for what is neither an address nor a name, for scoped IPv6 (Envoy's endpoints
    take no zone), and for addresses nobody can be reached at (unspecified, multicast).
    """
    host = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    ip = as_ip(host)
    if ip is not None:
        if ip.is_unspecified or ip.is_multicast:
            raise ValueError(f"host {host!r} is not an address to connect to")
        return str(ip)
    name = host.lower()
    if len(name) > MAX_HOST_CHARS:
        raise ValueError(f"a host of {len(name)} characters is longer than {MAX_HOST_CHARS}")
    # A name that ends in a number would be read as an odd IPv4 address by some resolvers.
    if not _NAME.fullmatch(name) or ".." in name or _LAST_LABEL_IS_NUMBER.search(name):
        raise ValueError(f"host {host[:64]!r} is neither an address nor a name")
    return name


def as_ip(host: str) -> IPv4Address | IPv6Address | None:
    """The address that a bare host is, IPv4 in IPv6 unwrapped; None for a name or a scoped one."""
    try:
        ip = ip_address(host)
    except ValueError:
        return None
    if isinstance(ip, IPv6Address):
        if ip.scope_id is not None:
            return None
        return ip.ipv4_mapped or ip
    return ip
