"""Pools for the tests of placement, written as short as the shapes they mean."""

from collections.abc import Sequence

from sidecar.routing.instance import Connector, Instance, Role, State, TransferMode, Version
from sidecar.routing.policies import pick
from sidecar.routing.pool import Pool
from sidecar.routing.slots import Cursors, Demand, Placement
from sidecar.routing.view import Member, View


def member(
    role: Role,
    ordinal: int,
    *,
    dp_size: int = 1,
    tp_size: int = 1,
    mode: TransferMode = TransferMode.READ,
    connector: Connector = Connector.MORIIO,
    models: tuple[str, ...] = (),
    version: Version | None = None,
    is_placeable: bool = True,
) -> Member:
    address = f"10.0.{0 if role is Role.PREFILL else 1}.{ordinal}:8000"
    return Member(
        instance=Instance(
            address=address,
            role=role,
            transfer_mode=mode,
            connector=connector,
            dp_size=dp_size,
            tp_size=tp_size,
        ),
        ordinal=ordinal,
        endpoint=address,
        state=State.READY if is_placeable else State.UNHEALTHY,
        is_placeable=is_placeable,
        version=version,
        models=models,
    )


def prefill(ordinal: int, **what: object) -> Member:
    return member(Role.PREFILL, ordinal, **what)


def decode(ordinal: int, **what: object) -> Member:
    return member(Role.DECODE, ordinal, **what)


def pool(*members: Member, number: int = 1) -> Pool:
    return Pool(View(number=number, members=members))


def shaped(prefill_dp: Sequence[int], decode_dp: Sequence[int]) -> Pool:
    """One prefill instance for each dp_size of the first, one decode instance of the second."""
    n = len(prefill_dp)
    return pool(
        *(prefill(i, dp_size=dp) for i, dp in enumerate(prefill_dp)),
        *(decode(n + i, dp_size=dp) for i, dp in enumerate(decode_dp)),
    )


def placed(pool_: Pool, cursors: Cursors, demand: Demand | None = None) -> Placement:
    """A pick that must succeed."""
    result = pick(pool_, demand or Demand(), cursors)
    assert isinstance(result, Placement), result
    return result


def keys(placement: Placement) -> tuple[tuple[int, int], tuple[int, int]]:
    assert placement.prefill is not None
    assert placement.decode is not None
    return placement.prefill.key, placement.decode.key
