"""The messages that free KV blocks which no transfer will fetch or fill (protocol e).

Pure: says what would be sent and where, or that nothing may be. Invariant: nothing is made that
could end an engine's notify thread, which any message does that it does not expect: one for the
other role, or of a version that lacks it.
"""

import msgspec

from sidecar.routing.instance import Connector, Instance, Role, TransferMode, Version
from sidecar.routing.view import Member

UNDERSTOOD_SINCE = Version(0, 33)
"""older engines raise on `write_failed`, and never had a release from outside"""


class Notice(msgspec.Struct, frozen=True):
    """One message for one transfer: the same bytes to every tensor-parallel rank of its data rank.

    To be sent as a single frame from a ZMQ DEALER; nobody answers.
    """

    addresses: tuple[str, ...]
    """`tcp://host:port`"""
    payload: bytes
    """a MessagePack map"""


def release(prefill: Member, dp_rank: int, transfer_id: str) -> Notice | None:
    """Free what prefill holds for a transfer that it has answered and nobody will fetch.

    Only for an id that this very engine has accepted: an unknown one it keeps, and tries again in
    every step. None: the engine would not understand it.
    """
    if prefill.instance.role is not Role.PREFILL:
        return None
    return _notice(
        prefill, dp_rank, {"type": "release", "transfer_id": transfer_id, "consumer_tp_size": 1}
    )


def write_failed(decode: Member, dp_rank: int, transfer_id: str) -> Notice | None:
    """End decode's wait for a push that will never come, in WRITE.

    Never while prefill may still push: its bytes would land in blocks that are someone else's.
    None: the engine would not understand it.
    """
    is_waiting = decode.instance.role is Role.DECODE
    if not is_waiting or decode.instance.transfer_mode is not TransferMode.WRITE:
        return None
    return _notice(decode, dp_rank, {"type": "write_failed", "transfer_id": transfer_id})


def _notice(member: Member, dp_rank: int, message: dict[str, object]) -> Notice | None:
    if member.instance.connector is not Connector.MORIIO:  # NIXL frees by its lease
        return None
    if member.version is None or member.version < UNDERSTOOD_SINCE:
        return None
    addresses = _addresses(member.instance, dp_rank)
    return Notice(addresses, msgspec.msgpack.encode(message)) if addresses else None


def _addresses(instance: Instance, dp_rank: int) -> tuple[str, ...]:
    """None where the port is not known, or is not one rank's alone (protocol d)."""
    if not instance.notify_port or (instance.dp_size > 1 and instance.tp_size > 1):
        return ()
    host = f"[{instance.kv_host}]" if ":" in instance.kv_host else instance.kv_host
    first = instance.notify_port + dp_rank
    return tuple(f"tcp://{host}:{first + tp_rank}" for tp_rank in range(instance.tp_size))
