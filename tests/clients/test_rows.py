"""The rows that docs/requests.md is made of."""

from pathlib import Path

from tests.clients.rows import PROOFS

ROOT = Path(__file__).parents[2]


def test_every_row_names_a_test() -> None:
    """One that exists."""
    for proof in PROOFS:
        path, _, name = proof.test.partition("::")
        assert f"def {name}(" in (ROOT / path).read_text(), proof


def test_no_feature_is_told_twice() -> None:
    """A row each."""
    assert len({proof.feature for proof in PROOFS}) == len(PROOFS)
