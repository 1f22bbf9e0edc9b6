"""The simulated language model: text as a pure function of the prompt and its KV blocks.

A prompt is canonical bytes, cut into blocks whose contents are a hash chain. The answer's
words come from the prompt's own chain *and* from the contents of the blocks that were handed
over, so an answer is right only if the blocks belong to this very prompt. `expected_text` is
the oracle: what a correct pool must answer.
"""

from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from sidecar.sim.choice_run import ChoiceRun
from sidecar.sim.forms import Form, read_form
from sidecar.sim.prompt import Api, Prompt, read_prompts
from sidecar.sim.sampling import Sampling, limit_of, words_key
from sidecar.sim.words import tokens_of, words_of

__all__ = ("Api", "block_contents", "expected_choices", "expected_text", "generate")

BLOCK_BYTES = 256  # of canonical prompt in one KV block


def block_contents(prompt: Prompt) -> tuple[bytes, ...]:
    """The contents of the prompt's KV blocks: 16 bytes each, each depending on all before."""
    contents: list[bytes] = []
    last = b""
    for at in range(0, len(prompt.canonical), BLOCK_BYTES):
        block = prompt.canonical[at : at + BLOCK_BYTES]
        last = blake2b(block, digest_size=16, key=last).digest()
        contents.append(last)
    return tuple(contents)


def seed_of(prompt: Prompt, blocks: Sequence[bytes], choice: int = 0, key: bytes = b"") -> bytes:
    """What decides the words of choice number `choice`; `blocks` are those really at hand.

    `key` is the part of sampling that changes the words; empty: greedy.
    """
    digest = blake2b(prompt.canonical, digest_size=32)
    digest.update(b"".join(blocks))
    digest.update(choice.to_bytes(4, "big"))
    digest.update(key)
    return digest.digest()


def generate(
    prompt: Prompt, blocks: Sequence[bytes], choice: int = 0, key: bytes = b""
) -> Iterator[str]:
    """The endless words of a choice.

    Every word but the first carries its leading space, so the text is their concatenation.
    """
    return words_of(seed_of(prompt, blocks, choice, key))


def run_choice(
    prompt: Prompt, blocks: Sequence[bytes], choice: int, sampling: Sampling, form: Form | None
) -> ChoiceRun:
    """A choice that has not begun."""
    seed = seed_of(prompt, blocks, choice, sampling.key)
    if form is None:
        return ChoiceRun(tokens_of(seed), sampling, prompt.eos_at)
    call, tokens = form.shape(words_of(seed))
    return ChoiceRun(iter(tokens), sampling, prompt.eos_at, call)


def expected_choices(
    api: Api, body: Mapping[str, Any], max_tokens: int | None = None
) -> tuple[str, ...]:
    """Every choice's text, prompt by prompt, that a correct pool answers (without `echo`).

    Of the base model, for completions and chats.
    """
    stop = body.get("stop")
    sampling = Sampling(
        max_tokens=limit_of(api, body) if max_tokens is None else max_tokens,
        min_tokens=body.get("min_tokens") or 0,
        ignore_eos=bool(body.get("ignore_eos")),
        stop=(stop,) if isinstance(stop, str) else tuple(stop or ()),
        include_stop=bool(body.get("include_stop_str_in_output")),
        stop_token_ids=frozenset(body.get("stop_token_ids") or ()),
        is_beam=bool(body.get("use_beam_search")),
        key=words_key(body),
    )
    form, texts = read_form(body), []
    for prompt in read_prompts(api, body):
        blocks = block_contents(prompt)
        for choice in range(int(body.get("n") or 1)):
            run = run_choice(prompt, blocks, choice, sampling, form)
            run.run()
            texts.append(run.text)
    return tuple(texts)


def expected_text(api: Api, body: Mapping[str, Any], max_tokens: int | None = None) -> str:
    """The text a correct pool must answer to `body` (its first choice).

    `max_tokens` None: what the body says, else the default of the API.
    """
    return expected_choices(api, body, max_tokens)[0]
