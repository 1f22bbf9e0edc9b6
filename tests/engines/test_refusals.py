"""What an engine refuses comes through in its own words."""

import json
from typing import Any

import pytest

from tests.e2e.stack import http
from tests.engines.comparison import PAIR
from tests.engines.fleet import GIVEN_UP_S, Fleet
from tests.engines.kinds import ALL, on
from tests.engines.questions import Questions
from tests.engines.vllm_engine import CONTEXT_TOKENS, MODEL, RANKS
from tests.requests.feature import CHAT, COMPLETIONS

pytestmark = pytest.mark.e2e

TEXT = {"model": MODEL, "prompt": "A river", "max_tokens": 4}
SAID = {"model": MODEL, "messages": [{"role": "user", "content": "A river"}], "max_tokens": 4}
REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "unknown model": (COMPLETIONS, TEXT | {"model": "nobody"}),
    "unknown model, chat": (CHAT, SAID | {"model": "nobody"}),
    "over-long prompt": (COMPLETIONS, TEXT | {"prompt": [7] * (CONTEXT_TOKENS + 20)}),
    "over-long chat": (
        CHAT,
        SAID | {"messages": [{"role": "user", "content": "stone " * (2 * CONTEXT_TOKENS)}]},
    ),
    "more tokens than the context": (COMPLETIONS, TEXT | {"max_tokens": CONTEXT_TOKENS + 1}),
    "temperature is text": (COMPLETIONS, TEXT | {"temperature": "hot"}),
    "temperature below zero": (COMPLETIONS, TEXT | {"temperature": -1}),
    "max_tokens is text": (CHAT, SAID | {"max_tokens": "many"}),
    "messages are no list": (CHAT, SAID | {"messages": "hello"}),
    "message without a role": (CHAT, SAID | {"messages": [{"content": "hello"}]}),
    "top_p above one": (CHAT, SAID | {"top_p": 3}),
    "stop is a number": (COMPLETIONS, TEXT | {"stop": 7}),
}


@on(ALL)
@pytest.mark.parametrize("case", REFUSED)
def test_a_refusal_is_the_engines_own(fleet: Fleet, case: str) -> None:
    """Status and body, to the byte."""
    path, body = REFUSED[case]
    alone = http("POST", fleet.prefill.url + path, body)
    through = http("POST", fleet.stack.url + path, body)
    assert 400 <= alone[0] < 500, alone
    assert through == alone


@on(ALL)
def test_nothing_is_left_of_refusals(fleet: Fleet) -> None:
    for path, body in REFUSED.values():
        http("POST", fleet.stack.url + path, body)
    fleet.rest()


@on(ALL)
@pytest.mark.parametrize("wrong", PAIR)
def test_a_rank_that_an_engine_does_not_have_is_its_refusal(fleet: Fleet, wrong: str) -> None:
    """A configuration that says one rank too many of an instance: one request in three meets it,
    and gets the 400; all others are served."""
    if wrong == "decode" and fleet.kind.mode == "WRITE":
        pytest.skip(
            "prefill then waits for a handshake with the rank that is not there (protocol e)"
        )
    sizes = {role: RANKS + (role == wrong) for role in PAIR}
    entries = [
        fleet.entry(engine, dp_size=sizes[engine.role]) for engine in (fleet.prefill, fleet.decode)
    ]
    asked = Questions(f"rank of {wrong}")
    with fleet.second_router(*entries) as stack:
        answers = [
            http("POST", stack.url + question.path, question.body)
            for question in (asked.text(20, 2) for _ in range(RANKS + 1))
        ]
    refused = [json.loads(body)["error"] for status, body in answers if status != 200]
    assert [error["code"] for error in refused] == [400]
    assert "data_parallel_rank" in refused[0]["message"]
    fleet.rest(GIVEN_UP_S)
