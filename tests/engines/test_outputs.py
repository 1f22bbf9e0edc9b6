"""What two engines say with KV moved between them is what one says alone."""

import itertools

import pytest

from tests.engines.comparison import Differs
from tests.engines.fleet import Fleet
from tests.engines.kinds import ALL, REAL, on
from tests.engines.questions import Question, Questions

pytestmark = pytest.mark.e2e

PROMPT_TOKENS = (1, 2, 31, 32, 33, 64, 100, 255, 300)
"""around the edges of a KV block of 32, and several blocks"""
MAX_TOKENS = (1, 2, 16, 64)
WORDS = (1, 9, 40, 90)


def every_size(seed: str) -> list[Question]:
    asked = Questions(seed)
    texts = itertools.product(PROMPT_TOKENS, MAX_TOKENS, (False, True))
    chats = itertools.product(WORDS, MAX_TOKENS, (False, True))
    return [asked.text(n, m, is_streamed=s) for n, m, s in texts] + [
        asked.chat(n, m, is_streamed=s) for n, m, s in chats
    ]


@on(ALL)
@pytest.mark.parametrize("at_once", [1, 16])
def test_greedy_answers_equal_those_of_one_engine(fleet: Fleet, at_once: int) -> None:
    """Completions and chats, streamed and whole, one at a time and 16 side by side."""
    fleet.compare(every_size(f"sizes {at_once}"), at_once)
    fleet.rest()


@on(ALL)
def test_a_prompt_that_decode_has_seen_gets_the_same_answer(fleet: Fleet) -> None:
    """Decode then has the whole of it in its own cache, and must tell prefill to free its blocks
    without fetching them."""
    asked = Questions("again")
    questions = [asked.text(tokens, 8) for tokens in (32, 64, 100)]
    for _ in range(3):
        fleet.compare(questions)
    fleet.rest()


@on([kind for kind in REAL if kind.connector == "moriio"])
def test_kv_that_was_not_moved_is_seen(fleet: Fleet) -> None:
    """The negative control: transfers report success and move nothing."""
    questions = [Questions("dropped").text(tokens, 16) for tokens in (40, 100, 200)]
    fleet.break_transfers(drop=True)
    try:
        with pytest.raises(Differs, match="3 of 3 requests"):
            fleet.compare(questions)
    finally:
        fleet.break_transfers()
    fleet.compare([Questions("mended").text(tokens, 16) for tokens in (40, 100, 200)])
