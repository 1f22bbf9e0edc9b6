"""The simulated language model: text as a pure function of the prompt and its KV blocks.

A prompt is canonical bytes, cut into blocks whose contents are a hash chain. The answer's
words come from the prompt's own chain *and* from the contents of the blocks that were handed
over, so an answer is right only if the blocks belong to this very prompt. `expected_text` is
the oracle: what a correct pool must answer.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from typing import Any, Literal

Api = Literal["completions", "chat"]

BLOCK_BYTES = 256  # of canonical prompt in one KV block
DEFAULT_MAX_TOKENS: Mapping[Api, int] = {
    "completions": 16,  # vLLM's own default
    "chat": 32,  # vLLM: the rest of the context; here finite and fixed
}
# Whatever else in a body shapes the prompt, so must reach both legs unchanged (protocol.md c).
_SHAPING_KEYS = (
    "messages",
    "tools",
    "tool_choice",
    "chat_template",
    "chat_template_kwargs",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    "documents",
    "response_format",
    "reasoning_effort",
    "mm_processor_kwargs",
    "truncate_prompt_tokens",
    "cache_salt",
    "suffix",
    "prompt_embeds",
)
# 256 syllables: every 16-bit number is one distinct two-syllable word, safe in JSON as it is.
_SYLLABLES = tuple(
    consonant + vowel + end
    for consonant in "bdfghjklmnprstvz"
    for vowel in "aeio"
    for end in ("", "n", "r", "s")
)


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt: its canonical bytes, its length in tokens (words), its text if it has one."""

    canonical: bytes
    tokens: int
    text: str


def read_prompts(api: Api, body: Mapping[str, Any]) -> tuple[Prompt, ...]:
    """The prompts of a request body: one for chat, one or several for completions.

    Raises ValueError, naming what is wrong, if the prompt or messages have no usable type.
    """
    shaping = {key: body[key] for key in _SHAPING_KEYS if body.get(key) is not None}
    if api == "chat":
        messages = body.get("messages")
        if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
            raise ValueError("messages: Input should be a valid list of objects")
        if not messages:
            raise ValueError("messages: list should have at least 1 item")
        canonical = _canonical(shaping)
        return (Prompt(b"chat:" + canonical, _count_chat_words(messages), ""),)
    prompt = body.get("prompt")
    if prompt is None and isinstance(body.get("prompt_embeds"), str):
        prompt = ""
    tail = b"\0" + _canonical(shaping) if shaping else b""
    return tuple(_completion_prompt(one, tail) for one in _split_prompts(prompt))


def _split_prompts(prompt: Any) -> list[Any]:
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt, list) and prompt:
        # A list of ids is one prompt, a list of strings or of lists is several (protocol.md h).
        if all(type(one) is int for one in prompt):
            return [prompt]
        if all(isinstance(one, str) for one in prompt):
            return prompt
        if all(isinstance(one, list) and all(type(i) is int for i in one) for one in prompt):
            return prompt
    raise ValueError("prompt: Input should be a valid string or list of token ids")


def _completion_prompt(prompt: str | list[int], tail: bytes) -> Prompt:
    if isinstance(prompt, str):
        text = prompt.encode("utf-8", "surrogatepass")
        return Prompt(b"text:" + text + tail, max(1, len(prompt.split())), prompt)
    ids = ",".join(map(str, prompt)).encode()
    return Prompt(b"ids:" + ids + tail, max(1, len(prompt)), "")


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _count_chat_words(messages: list[dict[str, Any]]) -> int:
    texts = (m["content"] for m in messages if isinstance(m.get("content"), str))
    return 1 + sum(len(text.split()) for text in texts)


def block_contents(prompt: Prompt) -> tuple[bytes, ...]:
    """The contents of the prompt's KV blocks: 16 bytes each, each depending on all before."""
    contents: list[bytes] = []
    last = b""
    for at in range(0, len(prompt.canonical), BLOCK_BYTES):
        block = prompt.canonical[at : at + BLOCK_BYTES]
        last = blake2b(block, digest_size=16, key=last).digest()
        contents.append(last)
    return tuple(contents)


def generate(prompt: Prompt, blocks: Sequence[bytes], choice: int = 0) -> Iterator[str]:
    """The endless words of choice number `choice`; `blocks` are those really at hand.

    Every word but the first carries its leading space, so the text is their concatenation.
    """
    digest = blake2b(prompt.canonical, digest_size=32)
    digest.update(b"".join(blocks))
    digest.update(choice.to_bytes(4, "big"))
    return _words(digest.digest())


def _words(seed: bytes) -> Iterator[str]:
    space = ""
    counter = 0
    while True:
        numbers = blake2b(counter.to_bytes(8, "big"), key=seed).digest()
        for high, low in zip(numbers[::2], numbers[1::2], strict=True):
            yield space + _SYLLABLES[high] + _SYLLABLES[low]
            space = " "
        counter += 1


def limit_of(api: Api, body: Mapping[str, Any]) -> int:
    """How many tokens the body asks for; `max_completion_tokens` wins in chat, as in vLLM."""
    asked = body.get("max_completion_tokens") if api == "chat" else None
    if asked is None:
        asked = body.get("max_tokens")
    return DEFAULT_MAX_TOKENS[api] if asked is None else int(asked)


def expected_choices(
    api: Api, body: Mapping[str, Any], max_tokens: int | None = None
) -> tuple[str, ...]:
    """Every choice's text, prompt by prompt, that a correct pool answers (without `echo`)."""
    limit = limit_of(api, body) if max_tokens is None else max_tokens
    return tuple(
        "".join(islice(generate(prompt, block_contents(prompt), choice), limit))
        for prompt in read_prompts(api, body)
        for choice in range(int(body.get("n") or 1))
    )


def expected_text(api: Api, body: Mapping[str, Any], max_tokens: int | None = None) -> str:
    """The text a correct pool must answer to `body` (its first choice).

    `max_tokens` None: what the body says, else the default of the API.
    """
    return expected_choices(api, body, max_tokens)[0]
