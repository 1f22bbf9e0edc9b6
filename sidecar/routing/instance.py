"""What an instance is: one vLLM deployment that registered (design §1).

Knows nothing of how it was heard of or how it is reached. All values are frozen.
"""

from enum import StrEnum

import msgspec


class Role(StrEnum):
    PREFILL = "prefill"
    DECODE = "decode"


class Connector(StrEnum):
    """vLLM's KV connector; a pool has one. The engines of two do not understand each other."""

    MORIIO = "moriio"
    NIXL = "nixl"
    """registers nowhere, always READ: prefill's answer tells decode where to pull (protocol g)"""


class TransferMode(StrEnum):
    READ = "READ"
    """decode pulls the KV blocks: the legs run in series"""
    WRITE = "WRITE"
    """prefill pushes the KV blocks: the legs run at once"""


class State(StrEnum):
    """The closed set of instance states (design §6), for labels and alerts."""

    UNPROBED = "unprobed"
    READY = "ready"
    UNHEALTHY = "unhealthy"
    EJECTED = "ejected"
    """its `/health` is good, but real requests failed (design §4)"""
    LEAVING = "leaving"
    EXPIRED = "expired"


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """What an instance says of itself, by heartbeat or by configuration.

    Two are the same instance when `address` is equal; a changed record replaces the old one whole.
    """

    address: str
    """`host:port` of its HTTP server, IPv6 in brackets; the key, whatever its role"""
    role: Role
    transfer_mode: TransferMode
    connector: Connector = Connector.MORIIO
    dp_size: int = 1
    """data-parallel ranks in the whole deployment, >= 1"""
    tp_size: int = 1
    kv_host: str = ""
    """Host of its KV transfer sockets, IPv6 bare (protocol b); empty: same as HTTP. It and the two
    ports are MoRI-IO's: engines with NIXL name theirs in each answer."""
    handshake_port: int = 0
    notify_port: int = 0
    is_static: bool = False
    """from the configuration: needs no heartbeat"""
    scheme: str = "http"

    @property
    def base_url(self) -> str:
        """The OpenAI base, without a trailing slash: `http://host:port/v1`."""
        return f"{self.scheme}://{self.address}/v1"

    @property
    def transfer(self) -> str:
        """How its KV moves, in a word for people: READ and WRITE of MoRI-IO, or NIXL."""
        return "NIXL" if self.connector is Connector.NIXL else self.transfer_mode.value

    @property
    def zmq_address(self) -> str:
        """The form vLLM embeds in request ids: `host:H,handshake:P,notify:P` (protocol b)."""
        return f"host:{self.kv_host},handshake:{self.handshake_port},notify:{self.notify_port}"


class Version(msgspec.Struct, frozen=True, order=True):
    """The part of vLLM's version that changes behaviour."""

    major: int
    minor: int
