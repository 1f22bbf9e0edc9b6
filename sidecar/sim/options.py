"""The options of one simulated instance, and what its vLLM version implies.

Light: standard library only, because a supervisor that must not import zmq or aiohttp
builds engine command lines from it.
"""

import re
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal

Role = Literal["prefill", "decode"]
ConnectorName = Literal["moriio", "nixl"]
Mode = Literal["READ", "WRITE"]
Shape = Literal["register", "typed"]


class OptionError(ValueError):
    """An option is wrong; the message is one line for the person who typed it."""


@dataclass(frozen=True, slots=True)
class Address:
    """A host and port to bind or dial; the host is bare (no brackets) for IPv6."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Rank:
    """Which of an engine's ranks a notify port belongs to; one of both numbers is 0."""

    dp: int
    tp: int


def parse_address(name: str, text: str) -> Address:
    """Read `HOST:PORT` or `[IPV6]:PORT`; `name` is the option to blame in the error."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not colon or not host or not port.isascii() or not port.isdecimal() or int(port) > 65535:
        raise OptionError(f"{name} is {text!r}, not HOST:PORT (for example 127.0.0.1:8000)")
    return Address(host, int(port))


def _listed(allowed: tuple[str | None, ...]) -> str:
    return ", ".join(one for one in allowed if one is not None)


def parse_release(version: str) -> tuple[int, int]:
    """(major, minor) of a vLLM version string such as `0.33.0rc1+cpu`."""
    found = re.match(r"(\d+)\.(\d+)(?![0-9])", version)
    if not found:
        raise OptionError(f"--version is {version!r}, not a version such as 0.33.0")
    return int(found[1]), int(found[2])


HELP = {
    "role": "prefill or decode",
    "http": "HOST:PORT of the OpenAI API",
    "proxy": "HOST:PORT of the router's registration; without it the engine never registers",
    "dp_size": "data-parallel ranks",
    "tp_size": "tensor-parallel size: a value, and with dp_size 1 as many notify ports",
    "connector": "moriio, or nixl: vLLM's pull connector, which registers nowhere",
    "mode": "transfer mode of moriio, READ or WRITE",
    "handshake_port": "first of dp_size ports; of nixl the side channel",
    "notify_port": "first of dp_size ports, of tp_size ones if dp_size is 1",
    "ttft_ms": "time to first token",
    "tokens_per_s": "of each answer; 0: as fast as possible",
    "model": "served model name; given again or after a comma: a LoRA adapter of the first",
    "max_model_len": "most tokens of a prompt and its answer together",
    "api_key": "asked for as Authorization: Bearer KEY where vLLM asks; empty: nowhere",
    "profiler": "mounts /start_profile and /stop_profile",
    "version": "vLLM's version, which decides the heartbeat's shape and how peers are found",
    "ping_interval_s": "between heartbeats",
    "shape": "heartbeat: register (up to 0.19) or typed; by default what the version sends",
    "request_address_suffix": "of the register shape: /v1/completions or /v1",
    "defer_timeout_s": "blocks that nobody fetches are given up after this",
    "kv_lease_s": "nixl: blocks that no decode engine reads, or renews, are given up after this",
    "start_delay_s": "between the first heartbeat and listening",
}
"""What each option is, for `--help`."""


@dataclass(frozen=True, slots=True)
class SimOptions:
    """One simulated instance.

    Port 0 (in `http`, `handshake_port`, `notify_port`) means: pick a free one. Rank r listens
    at `handshake_port + r` and `notify_port + r`; with one rank each of its `tp_size` ones has a
    notify port. `proxy` empty: never registers.
    `tokens_per_s` 0: as fast as possible. `shape` None: what `version` would send. `model` may be
    several names with commas between: the base model and its adapters.
    """

    role: Role
    connector: ConnectorName = "moriio"
    http: str = "127.0.0.1:0"
    proxy: str = ""
    dp_size: int = 1
    tp_size: int = 1
    mode: Mode = "READ"
    handshake_port: int = 0
    notify_port: int = 0
    ttft_ms: float = 0.0
    tokens_per_s: float = 0.0
    model: str = "sim-model"
    max_model_len: int = 1 << 20
    api_key: str = ""
    profiler: str = ""
    version: str = "0.33.0"
    ping_interval_s: float = 3.0
    shape: Shape | None = None
    request_address_suffix: str = "/v1/completions"
    defer_timeout_s: float = 60.0
    kv_lease_s: float = 30.0
    start_delay_s: float = 0.0

    def __post_init__(self) -> None:
        for name, allowed in (
            ("role", ("prefill", "decode")),
            ("connector", ("moriio", "nixl")),
            ("mode", ("READ", "WRITE")),
            ("shape", (None, "register", "typed")),
        ):
            if getattr(self, name) not in allowed:
                raise OptionError(
                    f"--{name} is {getattr(self, name)!r}, not one of {_listed(allowed)}"
                )
        self._check_numbers()
        parse_address("--http", self.http)
        if self.proxy:
            parse_address("--proxy", self.proxy)
        parse_release(self.version)
        if self.is_nixl:
            self._check_nixl()
        if not all(self.models) or len(set(self.models)) < len(self.models):
            raise OptionError(f"--model is {self.model!r}: a name is empty, or is there twice")

    def _check_nixl(self) -> None:
        if self.proxy:
            raise OptionError(
                "--proxy: a NIXL engine registers nowhere; name its --http address among the "
                "router's `instances`"
            )
        if self.mode != "READ":
            raise OptionError("--mode is WRITE: of NIXL only the pull connector is simulated")
        if self.release < (0, 32):
            raise OptionError(f"--version is {self.version!r}: NIXL is simulated from 0.32 on")

    def _check_numbers(self) -> None:
        for name, low, high in (
            ("dp_size", 1, 1024),
            ("tp_size", 1, 1024),
            ("handshake_port", 0, 65535),
            ("notify_port", 0, 65535),
            ("ttft_ms", 0, 3.6e6),
            ("tokens_per_s", 0, 1e9),
            ("ping_interval_s", 0.01, 3600),
            ("defer_timeout_s", 0.01, 86400),
            ("kv_lease_s", 0.01, 86400),
            ("start_delay_s", 0, 3600),
            ("max_model_len", 2, 1 << 30),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                option = "--" + name.replace("_", "-")
                raise OptionError(f"{option} is {value}, not between {low} and {high}")

    @property
    def models(self) -> tuple[str, ...]:
        """The served names: the base model, then its adapters."""
        return tuple(self.model.split(","))

    @property
    def is_nixl(self) -> bool:
        """The connector is NIXL's, and nothing of MoRI-IO applies."""
        return self.connector == "nixl"

    @property
    def release(self) -> tuple[int, int]:
        """(major, minor) of the simulated vLLM."""
        return parse_release(self.version)

    @property
    def fingerprint(self) -> str:
        """`system_fingerprint` of its answers, in vLLM's form."""
        ranks = f"-dp{self.dp_size}" if self.dp_size > 1 else ""
        own = blake2b(f"{self.connector} {self.model} {self.role}".encode(), digest_size=4)
        return f"vllm-{self.version}{ranks}-{own.hexdigest()}"

    @property
    def notify_ports(self) -> int:
        """How many there are: both sizes above 1 collide in vLLM (protocol d), here dp_size."""
        if self.is_nixl:
            return 0
        return self.dp_size if self.dp_size > 1 else self.tp_size

    @property
    def notify_ports_of_rank(self) -> int:
        """How many of them one data-parallel rank has."""
        return 1 if self.dp_size > 1 else self.tp_size

    @property
    def heartbeat_shape(self) -> Shape:
        """`register` up to vLLM 0.19, `typed` from 0.20 on, unless set (protocol.md a)."""
        return self.shape or ("register" if self.release < (0, 20) else "typed")

    @property
    def reads_embedded_address(self) -> bool:
        """The peer's address may stand in X-Request-Id, and wins there (protocol.md b)."""
        return self.release >= (0, 20)

    @property
    def needs_embedded_address(self) -> bool:
        """vLLM 0.20 to 0.31 knows no explicit address keys."""
        return (0, 20) <= self.release < (0, 32)

    @property
    def garbles_plain_requests(self) -> bool:
        """A READ decode engine before 0.33 answers a plain request with garbage and 200."""
        return (
            self.role == "decode"
            and self.mode == "READ"
            and self.release < (0, 33)
            and not self.is_nixl
        )
