"""The simulator answers as vLLM does: what real engines were seen to say of the same requests is
kept in a file, to which both are held."""

from typing import Any

import pytest

from tests.engines import seen
from tests.engines.differences import OF_THE_SIMULATOR
from tests.engines.fleet import GIVEN_UP_S, Fleet
from tests.engines.kinds import ALL, on
from tests.engines.legs import PATHS, prefill_legs
from tests.engines.rows import ROWS, answers
from tests.engines.shapes import differing, shape

pytestmark = pytest.mark.e2e


@on(ALL)
def test_an_engine_alone_answers_every_feature_in_vllms_shape(fleet: Fleet) -> None:
    """Status, content type, headers, errors to the letter, keys and types of JSON and events, and
    how they end; but for what `differences` names of the simulator."""
    found = {name: shape(answer) for name, answer in answers(fleet.prefill.url, ROWS).items()}
    if fleet.kind.is_real and seen.IS_RECORDING:
        seen.write_rows(found)
    features = {row.name: row.feature.test_id for row in ROWS}
    faults, differ = [], set()
    known = set() if fleet.kind.is_real else {(one.feature, one.at) for one in OF_THE_SIMULATOR}
    known = {(feature, at) for feature, at in known if feature in features.values()}
    for name, expected in seen.rows().items():
        for path, told in differing(expected, found[name]):
            feature = features[name]
            at = "" if (feature, "") in known else path[-1]
            differ.add((feature, at))
            if (feature, at) not in known:
                faults.append(f"{name}: {'.'.join(path)}: {told}")
    faults += [f"{feature}: does not differ any more: {at}" for feature, at in known - differ]
    assert features.keys() == seen.rows().keys()
    assert not faults, "\n".join(faults[:40])


@on(ALL)
def test_a_prefill_leg_is_answered_with_vllms_parameters(fleet: Fleet) -> None:
    """On each API: the same keys of the same types, and the rest of the answer as well."""
    found: dict[str, Any] = {path: shape(leg) for path, leg in prefill_legs(fleet).items()}
    wiring = f"{fleet.kind.connector} {fleet.kind.mode}"
    if fleet.kind.is_real and seen.IS_RECORDING:
        seen.write_legs(wiring, found)
    known = set() if fleet.kind.is_real else {(one.feature, one.at) for one in OF_THE_SIMULATOR}
    mine = [f"a prefill leg of {name}" for name in (fleet.kind.connector, *PATHS)]
    known = {(feature, at) for feature, at in known if feature in mine}
    faults, differ = [], set()
    for path, expected in seen.legs(wiring).items():
        of = (f"a prefill leg of {fleet.kind.connector}", f"a prefill leg of {path}")
        for at, told in differing(expected, found[path]):
            named = {(feature, at[-1]) for feature in of} & known
            differ |= named
            if not named:
                faults.append(f"{path}: {'.'.join(at)}: {told}")
    faults += [f"{feature}: does not differ any more: {at}" for feature, at in known - differ]
    assert not faults, "\n".join(faults)
    fleet.rest(GIVEN_UP_S)
