"""Bound sockets: the engine takes all its ports before it does anything else.

Bound but not listening, so that a dial is refused until the engine really serves.
"""

import socket

from sidecar.sim.options import Address, OptionError

_TRIES = 200


def bind(name: str, address: Address) -> socket.socket:
    """A bound TCP socket; raises OptionError if the address is in use or not ours."""
    try:
        return _bind(address)
    except OSError as error:
        raise OptionError(f"{name}: cannot listen on {address}: {error.strerror}") from None


def bind_range(name: str, host: str, base: int, count: int) -> list[socket.socket]:
    """`count` sockets on consecutive ports from `base`; base 0 looks for a free run of ports."""
    if base:
        if base + count - 1 > 65535:
            raise OptionError(f"{name}: {base} + {count} ranks is above port 65535")
        return [bind(name, Address(host, base + rank)) for rank in range(count)]
    for _ in range(_TRIES):
        taken = [_bind(Address(host, 0))]
        first = port_of(taken[0])
        try:
            if first + count - 1 <= 65535:
                taken += [_bind(Address(host, first + rank)) for rank in range(1, count)]
                return taken
        except OSError:
            pass
        for one in taken:
            one.close()
    raise OptionError(f"{name}: found no {count} consecutive free ports on {host}")


def port_of(bound: socket.socket) -> int:
    """The port a socket is bound to."""
    return int(bound.getsockname()[1])


def reachable_host(address: Address, peer: Address | None) -> str:
    """The host to announce: a wildcard becomes the address that faces `peer` (vLLM get_ip)."""
    if address.host not in ("0.0.0.0", "::"):
        return address.host
    family = socket.AF_INET6 if address.host == "::" else socket.AF_INET
    loopback = "::1" if address.host == "::" else "127.0.0.1"
    if peer is None:
        return loopback
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((peer.host, peer.port or 9))
            return str(probe.getsockname()[0])
    except OSError:
        return loopback


def _bind(address: Address) -> socket.socket:
    family, kind, proto, _, where = socket.getaddrinfo(
        address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    bound = socket.socket(family, kind, proto)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(where)
    except OSError:
        bound.close()
        raise
    bound.setblocking(False)
    return bound
