"""What an exchange asks of placement. Pure functions."""

from sidecar.exchange.intake import Request
from sidecar.exchange.situation import Limits
from sidecar.routing.slots import Demand, Slot
from sidecar.wire import paths


def demand_of(request: Request, limits: Limits, tried: frozenset[Slot]) -> Demand:
    """A pair, or one instance where one transfer cannot carry the request; none that was tried."""
    return Demand(
        model=request.model or None,
        is_aggregated=not request.can_transfer,
        aggregated_role=limits.aggregated_role,
        excluded=tried,
    )


def single_demand(path: str, model: str, limits: Limits) -> Demand:
    """One instance for a single-instance path; `model` empty: its body was not looked at."""
    kind = paths.single_of(path)
    return Demand(
        model=model or None,
        is_model_free=kind is paths.Single.ANY,
        is_aggregated=kind is paths.Single.MODEL,
        aggregated_role=limits.aggregated_role,
    )
