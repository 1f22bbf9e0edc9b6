"""The notices that free KV blocks: exact bytes, exact ports, and none that could hurt an engine."""

import msgspec
import pytest

from sidecar.routing.instance import Connector, Instance, Role, State, TransferMode, Version
from sidecar.routing.view import Member
from sidecar.wire.kv_notice import Notice, release, write_failed

V33 = Version(0, 33)
READ, WRITE = TransferMode.READ, TransferMode.WRITE


def member(
    role: Role,
    *,
    mode: TransferMode = WRITE,
    version: Version | None = V33,
    dp_size: int = 1,
    tp_size: int = 1,
    notify_port: int = 61005,
    kv_host: str = "10.0.0.1",
    connector: Connector = Connector.MORIIO,
) -> Member:
    return Member(
        instance=Instance(
            address="10.0.0.1:8000",
            role=role,
            transfer_mode=mode,
            connector=connector,
            dp_size=dp_size,
            tp_size=tp_size,
            kv_host=kv_host,
            handshake_port=6301,
            notify_port=notify_port,
        ),
        ordinal=0,
        endpoint="10.0.0.1:8000",
        state=State.READY,
        is_placeable=True,
        version=version,
    )


P, D = Role.PREFILL, Role.DECODE


def test_a_release_goes_to_every_tp_rank_of_the_data_rank() -> None:
    """One copy each, as MoRI-IO's own decode side sends it (protocol e)."""
    notice = release(member(P, mode=READ, tp_size=2), 0, "tx-1")
    assert notice is not None
    assert notice.addresses == ("tcp://10.0.0.1:61005", "tcp://10.0.0.1:61006")
    assert msgspec.msgpack.decode(notice.payload) == {
        "type": "release",
        "transfer_id": "tx-1",
        "consumer_tp_size": 1,
    }


def test_a_failed_write_goes_to_the_rank_that_waits() -> None:
    """Data rank 3 listens three ports further."""
    notice = write_failed(member(D, dp_size=4), 3, "tx-1")
    assert notice == Notice(
        ("tcp://10.0.0.1:61008",),
        msgspec.msgpack.encode({"type": "write_failed", "transfer_id": "tx-1"}),
    )


def test_an_ipv6_host_is_bracketed() -> None:
    """It is registered bare."""
    notice = release(member(P, kv_host="fe80::1"), 0, "tx-1")
    assert notice is not None
    assert notice.addresses == ("tcp://[fe80::1]:61005",)


@pytest.mark.parametrize(
    "what",
    [
        {"version": None},
        {"version": Version(0, 32)},
        {"dp_size": 2, "tp_size": 2},
        {"notify_port": 0},
        {"connector": Connector.NIXL},
    ],
)
def test_nothing_is_sent_to_an_engine_that_might_not_take_it(what: dict[str, object]) -> None:
    """Unknown or older versions, ports that several ranks share, ports that are not known, and an
    engine that has no such ports."""
    assert release(member(P, **what), 0, "tx-1") is None
    assert write_failed(member(D, **what), 0, "tx-1") is None


def test_nothing_is_sent_to_the_other_role_or_mode() -> None:
    """Either would end the engine's notify thread."""
    assert release(member(D), 0, "tx-1") is None
    assert write_failed(member(P), 0, "tx-1") is None
    assert write_failed(member(D, mode=READ), 0, "tx-1") is None
