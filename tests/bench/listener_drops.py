"""Connections that a listener's full queue turned away, of one port: the kernel's count for each
socket (sock_diag(7), SK_MEMINFO_DROPS). The counters of /proc/net/netstat are the whole machine's.
"""

import errno
import os
import socket
import struct
from collections.abc import Iterator

NETLINK_SOCK_DIAG = 4
SOCK_DIAG_BY_FAMILY = 20
NLM_F_REQUEST, NLM_F_DUMP = 0x1, 0x300
NLMSG_ERROR, NLMSG_DONE = 2, 3
TCP_LISTEN = 10
INET_DIAG_SKMEMINFO = 7
DROPS = 8
"""place in the numbers of INET_DIAG_SKMEMINFO"""

HEADER = struct.Struct("=IHHII")
REQUEST = struct.Struct("=BBBxI48x")
"""inet_diag_req_v2: family, protocol, wanted attributes, states, and an empty socket id"""
SOCKET = struct.Struct("=BBBB2s2s")
"""the start of inet_diag_msg: family, state, timer, retransmits, source port, destination port"""
SOCKET_BYTES = 72
ATTRIBUTE = struct.Struct("=HH")
READ_BYTES = 1 << 16


def listener_drops(port: int) -> int:
    """Of all IPv4 listeners on that port together, since each began."""
    return sum(drops for found, drops in _listeners() if found == port)


def _listeners() -> Iterator[tuple[int, int]]:
    """Port and drops of every listener. Raises OSError when the kernel does not say."""
    request = REQUEST.pack(
        socket.AF_INET, socket.IPPROTO_TCP, 1 << (INET_DIAG_SKMEMINFO - 1), 1 << TCP_LISTEN
    )
    flags = NLM_F_REQUEST | NLM_F_DUMP
    header = HEADER.pack(HEADER.size + len(request), SOCK_DIAG_BY_FAMILY, flags, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as link:
        link.send(header + request)
        while True:
            data = link.recv(READ_BYTES)
            while data:
                size, kind, *_ = HEADER.unpack_from(data)
                message, data = data[HEADER.size : size], data[_aligned(size) :]
                if kind == NLMSG_DONE:
                    return
                if kind == NLMSG_ERROR:
                    code = -struct.unpack_from("=i", message)[0] or errno.EPROTO
                    raise OSError(code, os.strerror(code))
                port = int.from_bytes(SOCKET.unpack_from(message)[4], "big")
                yield port, _drops_of(message[SOCKET_BYTES:])


def _drops_of(attributes: bytes) -> int:
    while attributes:
        size, kind = ATTRIBUTE.unpack_from(attributes)
        if kind == INET_DIAG_SKMEMINFO:
            return int(struct.unpack_from("=I", attributes, ATTRIBUTE.size + 4 * DROPS)[0])
        attributes = attributes[_aligned(size) :]
    raise OSError(errno.ENODATA, "no SK_MEMINFO of a listener")


def _aligned(size: int) -> int:
    return (size + 3) & ~3
