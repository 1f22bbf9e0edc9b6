"""Greedy requests of given sizes, each with a prompt of its own.

No two prompts share their first tokens, so that no engine answers from what it has cached: what
decode says, it says from the KV it was given.
"""

import random
from dataclasses import dataclass
from typing import Any

from tests.engines.vllm_engine import MODEL
from tests.requests.feature import CHAT, COMPLETIONS

_FIRST_TOKEN, _TOKENS = 10, 500
"""between the special tokens and the end of the vocabulary"""
_WORDS = ("river", "stone", "cloud", "seven", "apple", "north", "quick", "lamp", "order", "winter")


@dataclass(frozen=True)
class Question:
    name: str
    path: str
    body: dict[str, Any]


class Questions:
    """Draws prompts; the same ones for the same seed."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)

    def text(self, prompt_tokens: int, max_tokens: int, *, is_streamed: bool = False) -> Question:
        """A completion of exactly so many prompt tokens."""
        prompt = self._random.choices(range(_FIRST_TOKEN, _TOKENS), k=prompt_tokens)
        body = {"prompt": prompt, "return_token_ids": True}
        name = f"{prompt_tokens} prompt tokens, {max_tokens} more"
        return _greedy(COMPLETIONS, name, body, max_tokens, is_streamed)

    def chat(self, words: int, max_tokens: int, *, is_streamed: bool = False) -> Question:
        said = " ".join(self._random.choices(_WORDS, k=words))
        content = f"{self._random.randrange(10**6)} {said}"
        body = {"messages": [{"role": "user", "content": content}]}
        return _greedy(
            CHAT, f"chat of {words} words, {max_tokens} tokens", body, max_tokens, is_streamed
        )


def _greedy(
    path: str, name: str, body: dict[str, Any], max_tokens: int, is_streamed: bool
) -> Question:
    body |= {"model": MODEL, "max_tokens": max_tokens, "temperature": 0}
    if is_streamed:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return Question(f"{name}{', streamed' * is_streamed}", path, body)
