"""Leases of NIXL's blocks: who keeps them, until when, and what a read of free ones gives."""

from sidecar.sim.leases import Leases


def test_blocks_are_read_until_their_request_ends() -> None:
    leases = Leases(30)
    lease = leases.hold("r1", [b"a", b"b"], now=0)
    assert leases.read(lease.block_ids) == [b"a", b"b"]
    assert leases.end("r1") is lease
    assert (leases.requests, leases.blocks, leases.end("r1")) == (0, 0, None)


def test_free_blocks_are_never_read_as_they_were() -> None:
    leases = Leases(30)
    lease = leases.hold("r1", [b"a"], now=0)
    leases.end("r1")
    assert leases.read(lease.block_ids) != [b"a"]
    assert leases.read(lease.block_ids) != leases.read(lease.block_ids)


def test_block_ids_do_not_come_again() -> None:
    leases = Leases(30)
    first = leases.hold("r1", [b"a"], now=0)
    leases.end("r1")
    assert leases.hold("r2", [b"a"], now=0).block_ids != first.block_ids


def test_lease_ends_at_its_time_whatever_came_before_it() -> None:
    """A renewed lease at the head does not keep a later one that nobody renews."""
    leases = Leases(30)
    leases.hold("old", [b"a"], now=0)
    leases.hold("new", [b"b"], now=1)
    assert leases.renew("old", now=20)
    assert [lease.request_id for lease in leases.expire(31)] == ["new"]
    assert leases.has_expired("new")
    assert not leases.has_expired("old")
    assert [lease.request_id for lease in leases.expire(40)] == ["old"]


def test_heartbeat_never_shortens_a_lease_and_knows_nobody_else() -> None:
    leases = Leases(30)
    leases.hold("r1", [b"a"], now=0)
    assert leases.renew("r1", now=1)
    assert leases.expire(29) == []
    assert not leases.renew("r2", now=1)
