"""The door that engines register at: a ZMQ ROUTER socket, one-way (protocol a).

Knows no registry: every good heartbeat goes to a callback, every bad message is counted by reason
and dropped. Invariant: no message, however broken, and no fault of a callback stops the listener.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_network

import zmq
import zmq.asyncio

from sidecar.errors import HeartbeatError, StartError
from sidecar.routing.instance import Instance
from sidecar.telemetry.repeated import Repeated
from sidecar.wire.heartbeat import REASONS, host_differs, parse_heartbeat
from sidecar.wire.names import as_ip, parse_port

log = logging.getLogger(__name__)

MAX_FRAME_BYTES = 64 * 1024
"""libzmq closes the connection of a peer that announces a longer frame"""
QUEUE_MESSAGES = 256
"""Messages queued for each connection; then its TCP window closes, nothing is lost. An engine that
was cut off flushes up to 1000 at once (protocol a)."""
HANDSHAKE_MS = 10_000
"""a connection that does not speak ZMTP by then is closed"""
KEEPALIVE_IDLE_S = 30
MESSAGES_A_TURN = 64
"""read in a row before the event loop gets its turn; 64 take about 1 ms"""
MAX_WARNED = 4096
"""lines remembered that are said once"""

OnHeartbeat = Callable[[Instance, str], None]
"""(instance, the sender's IP or ""); may raise HeartbeatError, which is counted like any other"""
OnRejected = Callable[[str, str], None]
"""(reason, detail); the reason is one of REASONS"""


class HeartbeatListener:
    """Bind, start, close, once each. `counts` and `heard` may be read at any time."""

    def __init__(
        self,
        listen: str,
        on_heartbeat: OnHeartbeat,
        on_rejected: OnRejected | None = None,
        allow: Sequence[str] = (),
    ) -> None:
        """`listen`: `tcp://host:port`, IPv6 in brackets (dual stack at `[::]`); port 0: any free.
        `allow`: networks that may register (`10.0.0.0/8`); none named: all may."""
        self._listen = listen
        self._on_heartbeat = on_heartbeat
        self._on_rejected = on_rejected
        self._allow = _networks(allow)
        self._context: zmq.asyncio.Context | None = None
        self._socket: zmq.asyncio.Socket | None = None
        self._task: asyncio.Task[None] | None = None
        self._counts = dict.fromkeys(REASONS, 0)
        self._warned: set[str] = set()
        self._faults = Repeated()
        self.heard = 0
        """good heartbeats so far"""

    def __repr__(self) -> str:
        bad = {reason: count for reason, count in self._counts.items() if count}
        return f"HeartbeatListener({self._listen!r}, heard {self.heard}, rejected {bad})"

    @property
    def counts(self) -> Mapping[str, int]:
        """Rejected messages by reason; every reason is there."""
        return self._counts

    @property
    def bound_address(self) -> str:
        """Where it really listens, `tcp://host:port`; only while bound."""
        assert self._socket is not None, "not bound"
        return self._socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def bind(self) -> None:
        """Take the port. Raises StartError that names the address."""
        _check_port(self._listen)
        context = zmq.asyncio.Context()
        socket = context.socket(zmq.ROUTER)
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
        socket.setsockopt(zmq.RCVHWM, QUEUE_MESSAGES)
        socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        socket.setsockopt(zmq.BACKLOG, 1024)
        socket.setsockopt(zmq.LINGER, 0)
        # Engines that vanished without a FIN would keep their sockets for ever.
        socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
        socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, KEEPALIVE_IDLE_S)
        socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, 10)
        socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, 3)
        # With this on, libzmq cannot bind an IPv4 address where the kernel has no IPv6.
        socket.setsockopt(zmq.IPV6, 1 if "[" in self._listen else 0)
        try:
            socket.bind(self._listen)
        except zmq.ZMQError as fault:
            socket.close()
            context.term()
            raise StartError(
                f"cannot listen for engines at {self._listen}: {fault}; "
                "registration.listen sets another address"
            ) from fault
        self._context, self._socket = context, socket

    def start(self) -> None:
        """Begin to read; messages that came since `bind` are read first."""
        assert self._socket is not None, "bind first"
        self._task = asyncio.create_task(self._serve(self._socket), name="heartbeat-listener")

    async def close(self) -> None:
        """Stop reading and give the port back. Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        socket, self._socket = self._socket, None
        if socket is not None:
            socket.close(linger=0)
        context, self._context = self._context, None
        if context is not None:
            context.term()

    async def _serve(self, socket: zmq.asyncio.Socket) -> None:
        read = 0
        while True:
            try:
                frames = await socket.recv_multipart(copy=False)
            except zmq.ZMQError:
                if socket.closed:
                    return
                log.exception("reading registrations failed; trying again")
                await asyncio.sleep(0.1)
                continue
            self._take(frames)
            read += 1
            if read % MESSAGES_A_TURN == 0:
                # A receive that finds a message ready never yields by itself.
                await asyncio.sleep(0)

    def _take(self, frames: Sequence[zmq.Frame]) -> None:
        try:
            sender = _sender_of(frames)
            try:
                self._admit(frames, sender)
            except HeartbeatError as fault:
                self._reject(fault, sender)
        except Exception:  # a callback's bug must not end the door
            log.exception("a registration could not be handled")

    def _admit(self, frames: Sequence[zmq.Frame], sender: str) -> None:
        self._check_source(sender)
        instance = parse_heartbeat([frame.bytes for frame in frames[:3]])
        if instance is not None:
            self._on_heartbeat(instance, sender)
            self.heard += 1
            self._compare(instance, sender)

    def _check_source(self, sender: str) -> None:
        if not self._allow:
            return
        ip = as_ip(sender)
        if ip is None or not any(ip in network for network in self._allow):
            raise HeartbeatError("source", f"{sender or 'unknown'} is in no allowed network")

    def _reject(self, fault: HeartbeatError, sender: str) -> None:
        self._counts[fault.reason] = self._counts.get(fault.reason, 0) + 1
        if fault.reason == "connector":
            # A good registration that nothing but an operator can mend: once for each engine.
            if self._is_new(f"{sender} {fault.detail}"):
                log.warning("registration from %s dropped: %s", sender, fault)
        else:
            unsaid = self._faults.unsaid(fault.reason, asyncio.get_running_loop().time())
            if unsaid is not None:
                more = f" ({unsaid} more like it)" if unsaid else ""
                log.warning("registration from %s dropped: %s%s", sender, fault, more)
        if self._on_rejected is not None:
            self._on_rejected(fault.reason, fault.detail)

    def _compare(self, instance: Instance, sender: str) -> None:
        """Warn once of a record that names another host than it came from: engines behind NAT or
        with a wrong `host_ip` register an address that leads elsewhere."""
        address = instance.address
        if host_differs(instance, sender) and self._is_new(address):
            log.warning("instance %s registers from %s, another host", address, sender)

    def _is_new(self, line: str) -> bool:
        """Whether to say what is said once; remembers it."""
        if line in self._warned or len(self._warned) >= MAX_WARNED:
            return False
        self._warned.add(line)
        return True


def _sender_of(frames: Sequence[zmq.Frame]) -> str:
    """The IP that a message came from, IPv4 unwrapped; empty where libzmq does not say."""
    try:
        text = str(frames[-1].get("Peer-Address"))
    except zmq.ZMQError:
        return ""
    ip = as_ip(text.partition("%")[0])
    return str(ip) if ip is not None else ""


def _check_port(listen: str) -> None:
    """libzmq takes a port modulo 65536 and binds another than was asked for."""
    port = listen.rpartition(":")[2]
    if listen.startswith("tcp://") and port not in ("0", "*"):
        try:
            parse_port(port)
        except ValueError as fault:
            raise StartError(f"cannot listen for engines at {listen}: {fault}") from fault


def _networks(allow: Sequence[str]) -> tuple[IPv4Network | IPv6Network, ...]:
    networks = []
    for text in allow:
        try:
            networks.append(ip_network(text, strict=False))
        except ValueError as fault:
            raise StartError(f"registration.allow: {text!r} is not a network") from fault
    return tuple(networks)
