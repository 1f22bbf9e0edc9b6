"""Which errors that a simulated engine counts a killed peer explains. Every other kind is a fault
of the router: it sent what MoRI-IO cannot take. Pure."""

from collections.abc import Mapping

EXPLAINED = {
    "unknown_transfer": "the peer was started anew, or the blocks were reaped after a long stop",
    "peer_unreachable": "READ: prefill was killed between its answer and decode's fetch",
    "notify_unreachable": "WRITE: prefill was killed before decode told it its blocks",
    "push_unreachable": "WRITE: decode was killed before prefill pushed",
    "push_unknown_transfer": "WRITE: decode was started anew between its notice and the push",
    "write_failed": "WRITE: prefill gave up after its defer time-out, decode being away",
    "write_failed_unreachable": "WRITE: the same, and decode could not be told",
    "unknown_release": "the blocks were fetched or reaped before the release came",
}
"""kind -> how it can come about without a fault of the router"""


def unexplained(errors: Mapping[str, int]) -> dict[str, int]:
    """What no killed peer explains."""
    return {kind: n for kind, n in sorted(errors.items()) if n and kind not in EXPLAINED}
