"""The engines' own counters say what the router did: KV came from prefill, and nothing is left."""

import pytest

from tests.engines.fleet import Fleet
from tests.engines.kinds import ALL, on
from tests.engines.questions import Questions

pytestmark = pytest.mark.e2e


@on(ALL)
def test_decode_computes_no_prompt(fleet: Fleet) -> None:
    """Its hits in another engine's cache are the prompt tokens that were sent: all of them, but for
    the last of each in READ, which MoRI-IO's decode computes itself."""
    asked = Questions("counted")
    questions = [asked.text(tokens, 4) for tokens in (2, 31, 32, 33, 100, 300)]
    questions += [asked.chat(words, 4) for words in (3, 60)]
    before = fleet.counters(fleet.decode).external_hits
    compared = fleet.compare(questions, at_once=4)
    fleet.rest()
    own = len(questions) if (fleet.kind.connector, fleet.kind.mode) == ("moriio", "READ") else 0
    hits = fleet.counters(fleet.decode).external_hits - before
    assert hits == compared.prompt_tokens - own
