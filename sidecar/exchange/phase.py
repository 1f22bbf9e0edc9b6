"""The phases of an exchange, in which order the machine says."""

from enum import StrEnum

from sidecar.errors import PdSidecarError


class Phase(StrEnum):
    HEADERS = "headers"
    BODY = "body"
    PLACING = "placing"
    PREFILL = "prefill"
    CONFIRM = "confirm"
    DECODE = "decode"
    DECODE_ALONE = "decode_alone"
    HELD = "held"
    PREFILL_ALONE = "prefill_alone"
    DONE = "done"


class IllegalEvent(PdSidecarError):
    """An event in a phase that does not expect it: a bug, or an Envoy that is configured
    otherwise."""


CLIENT_PHASE = {
    Phase.HEADERS: "upload",
    Phase.BODY: "upload",
    Phase.PLACING: "upload",
    Phase.PREFILL: "prefill",
    Phase.CONFIRM: "prefill",
    Phase.DECODE: "decode",
    Phase.DECODE_ALONE: "decode",
    Phase.HELD: "decode",
}
"""where a client left, for `cancellations_total`"""
