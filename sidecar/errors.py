"""The project's one tree of exceptions.

Only surprises and faults that end a command are exceptions; a refusal of a request is a value
(`sidecar.exchange.reasons.Reason`). Library exceptions are translated into these where they occur.
"""


class PdSidecarError(Exception):
    """Root of everything this project raises on purpose."""


class ConfigError(PdSidecarError):
    """The configuration is wrong. `faults` has one line a fault, each naming its key."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__("; ".join(faults))
        self.faults = faults


class StartError(PdSidecarError):
    """A command cannot start (port in use, no Envoy, already running). The text says the way
    out."""


class RemoteError(PdSidecarError):
    """A peer (engine, client, Envoy, another of our processes) broke the protocol."""


class HeartbeatError(RemoteError):
    """A registration frame that is not one. `reason` is the metric label (closed set)."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


class SnapshotError(PdSidecarError):
    """A set of xDS resources that would not be consistent; nothing of it is sent."""
