"""Every fuzz target on what is known of it, and around it. `make fuzz` searches on from there."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.mutation import mutated
from tests.fuzz.target import CORPUS, Target
from tests.fuzz.targets import TARGETS

every_target = pytest.mark.parametrize("target", TARGETS, ids=lambda one: one.name)


@every_target
def test_seeds_and_corpus(target: Target) -> None:
    """What once found something finds it no more."""
    for data in target.starts:
        target.check(data)


def test_each_folder_of_the_corpus_is_a_targets() -> None:
    """A target that was renamed takes its corpus along."""
    assert {path.name for path in CORPUS.iterdir()} <= {one.name for one in TARGETS}


@every_target
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_around_them(target: Target, data: st.DataObject) -> None:
    """Some edits away too, each gives a value or the named error."""
    target.check(data.draw(mutated(target)))
