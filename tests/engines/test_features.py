"""Every feature of docs/requests.md on engines that are there: real vLLM with a tiny model, and the
simulator told to be the same version."""

import re

import pytest

from tests.engines.comparison import PAIR
from tests.engines.differences import OF_A_PAIR, OTHER_STATUS
from tests.engines.fleet import Fleet, Kind
from tests.engines.kinds import ALL, on
from tests.engines.merged import differences, merged
from tests.engines.rows import ROWS, Row, answers
from tests.engines.tally import TALLY
from tests.requests.answer import Answer
from tests.requests.feature import Served

pytestmark = pytest.mark.e2e

(ENDS_AT_ONCE,) = {
    row.feature.test_id: row.feature for row in ROWS if len(row.feature.modes) == 1
}.values()
"""the one row that no prefill leg can keep from ending by itself"""


@on(ALL)
def test_a_pair_answers_every_feature_as_one_engine_does(fleet: Fleet) -> None:
    """Status, content type and all that is said, but for what `differences` names; it went where
    the row says; and nothing is left of it."""
    # Real engines keep what they computed; the simulator has no such cache, and its words follow
    # from the salt.
    salts = ("through", "alone") if fleet.kind.is_real else ("", "")
    through = answers(fleet.stack.url, ROWS, salt=salts[0])
    alone = answers(fleet.prefill.url, ROWS, salt=salts[1])
    faults: list[str] = []
    seen: set[tuple[str, str]] = set()
    for row in ROWS:
        faults += unexpected(fleet.kind, row, alone[row.name], through[row.name])
        seen |= {(row.name, at) for at in differing(alone[row.name], through[row.name])}
    known = {(one.row, one.at) for one in OF_A_PAIR if fleet.kind in one.kinds}
    faults += [f"{row}: differs at {at}" for row, at in sorted(seen - known)]
    faults += [f"{row}: does not differ any more at {at}" for row, at in sorted(known - seen)]
    assert not faults, "\n".join(faults[:30])
    TALLY.add(fleet.kind.name, len(ROWS) - len({row for row, _ in known}))
    fleet.rest()


def differing(alone: Answer, through: Answer) -> list[str]:
    """Paths in the answer."""
    if (through.status, through.content_type) != (alone.status, alone.content_type):
        return [f"status: {alone.status} and {through.status}, {through.body[:200]!r}"]
    found = differences(merged(alone), merged(through))
    return [re.sub(r"\[\d+\]", "[]", line.partition(": ")[0]) for line in found]


def unexpected(kind: Kind, row: Row, alone: Answer, through: Answer) -> list[str]:
    """Where the engine's status, or who served it, is not what the tables say."""
    status = status_of(kind, row)
    if alone.status != status:
        return [f"{row.name}: {alone.status} and not {status}, {alone.body[:200]!r}"]
    roles, reason = through.served_by, through.headers.get("x-pd-error")
    expected = served_by(kind, row)
    if (roles, reason) != expected:
        return [f"{row.name}: served by {roles}, {reason}, and not by {expected}"]
    return []


def status_of(kind: Kind, row: Row) -> int:
    for other in OTHER_STATUS:
        if other.feature == row.feature.test_id and (kind.is_real or not other.is_real):
            return other.status
    return row.feature.status


def ends_without_kv(kind: Kind) -> bool:
    """`<eos:1>` is a word of the simulator, and to NIXL an end is an end."""
    return not kind.is_real and kind.connector == "moriio"


def served_by(kind: Kind, row: Row) -> tuple[tuple[str, ...], str | None]:
    """The roles, and the router's word for it."""
    served = row.feature.served
    if served is Served.PREFILL or (served is Served.PAIR and status_of(kind, row) != 200):
        return ("prefill",), "prefill_rejected"
    if row.feature is ENDS_AT_ONCE and not ends_without_kv(kind):
        return PAIR, None
    return (PAIR if served is Served.PAIR else ("prefill",)), None
