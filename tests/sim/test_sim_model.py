"""The model is a pure function: same prompt same text, other prompt or blocks other text."""

from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from sidecar.sim.model import BLOCK_BYTES, block_contents, expected_text, generate
from sidecar.sim.prompt import read_prompts
from sidecar.sim.sampling import limit_of

prompts = st.text() | st.lists(st.integers(0, 200_000), min_size=1)


@given(prompts, prompts)
def test_texts_are_equal_exactly_if_the_prompts_are(one, two) -> None:
    texts = [expected_text("completions", {"prompt": prompt}) for prompt in (one, two)]
    assert (texts[0] == texts[1]) == (one == two)


@given(st.text(min_size=1))
def test_foreign_blocks_change_the_text(text) -> None:
    (prompt,) = read_prompts("completions", {"prompt": text})
    (other,) = read_prompts("completions", {"prompt": text + "!"})
    own, foreign = (
        list(islice(generate(prompt, block_contents(which)), 8)) for which in (prompt, other)
    )
    assert own != foreign


def test_blocks_depend_on_all_that_came_before() -> None:
    tail = "z" * 2 * BLOCK_BYTES
    one, two = (
        block_contents(read_prompts("completions", {"prompt": start + tail})[0]) for start in "ab"
    )
    assert len(one) == len(two) == 3
    assert not set(one) & set(two)


def test_a_longer_answer_starts_with_the_shorter_one() -> None:
    body = {"prompt": "hello"}
    short, long = (expected_text("completions", body, count) for count in (5, 500))
    assert long.startswith(short + " ")
    assert len(long.split()) == 500


def test_what_shapes_the_prompt_shapes_the_text() -> None:
    body = {"messages": [{"role": "user", "content": "hi"}]}
    plain = expected_text("chat", body)
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert expected_text("chat", {**body, "tools": tools}) != plain
    assert expected_text("chat", {**body, "temperature": 0, "seed": 3}) == plain
    assert expected_text("chat", {**body, "tools": None}) == plain


def test_limits() -> None:
    assert limit_of("completions", {}) == 16
    assert limit_of("chat", {}) == 32
    assert limit_of("chat", {"max_tokens": 5, "max_completion_tokens": 7}) == 7
    assert limit_of("completions", {"max_tokens": 5, "max_completion_tokens": 7}) == 5
