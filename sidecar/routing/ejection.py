"""Who may be ejected, seen over a whole role: never so many that the pool fails of it (design §4).

Refused connections eject without limit: who does not listen serves nobody. Resets, time-outs and
errors may as well be the requests' or the network's fault, so of a role's n instances at most
floor(n/2) are out for them, and never the last one that is ready. Pure, decides and changes nothing
but the count of failures.
"""

from collections.abc import Iterable

from sidecar.routing.instance import Role, State
from sidecar.routing.record import Record
from sidecar.routing.standing import EjectionRule, Evidence, Failure


def is_due(
    record: Record, evidence: Evidence, rule: EjectionRule, records: Iterable[Record]
) -> bool:
    """Take the evidence; whether `record` is to be ejected for it. `records`: all there are.

    One that is out already learns nothing: what hangs there and fails is known to the probes."""
    if record.state is not State.READY or not record.standing.weigh(evidence, rule):
        return False
    return evidence.failure is Failure.REFUSED or _is_dispensable(record, records)


def pardoned(records: Iterable[Record]) -> list[Record]:
    """Those to bring back at once, the longest ejected first: others went, so there are more than
    floor(n/2), or no other is ready any more."""
    back = []
    everyone = list(records)
    for role in Role:
        members = _counted(role, everyone)
        out = sorted(
            (m for m in members if m.standing.is_ejected_on_count),
            key=lambda m: (m.state is not State.EJECTED, m.standing.ejected_at),
        )
        due = len(out) - len(members) // 2
        if out and out[0].state is State.EJECTED and not _has_ready(members):
            due = max(due, 1)
        back += out[: max(0, due)]
    return back


def _is_dispensable(record: Record, records: Iterable[Record]) -> bool:
    members = _counted(record.instance.role, records)
    out = sum(member.standing.is_ejected_on_count for member in members)
    return out < len(members) // 2 and _has_ready(m for m in members if m is not record)


def _counted(role: Role, records: Iterable[Record]) -> list[Record]:
    return [
        record
        for record in records
        if record.instance.role is role and not (record.is_expired or record.is_leaving)
    ]


def _has_ready(members: Iterable[Record]) -> bool:
    return any(member.state is State.READY for member in members)
