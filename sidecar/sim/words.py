"""The words of the simulated model: an endless sequence that a digest decides.

A token is a word. Its id follows from its text, so that logprobs, ids and stop ids agree.
"""

from collections.abc import Iterator
from hashlib import blake2b
from operator import itemgetter
from typing import NamedTuple

FIRST_WORD_ID = 1000
FIRST_OTHER_ID = 100_000
"""Of texts that are no words: pieces of a prompt or of JSON. Words take 65536 ids."""
VOCABULARY = FIRST_OTHER_ID + 65536

# 256 syllables: every 16-bit number is one distinct two-syllable word, safe in JSON as it is.
_SYLLABLES = tuple(
    consonant + vowel + end
    for consonant in "bdfghjklmnprstvz"
    for vowel in "aeio"
    for end in ("", "n", "r", "s")
)


class Token(NamedTuple):
    """One token: its id, its text with any leading space, its part of a tool call's arguments."""

    id: int
    text: str
    argument: str = ""


EOS = Token(2, "")
"""The end-of-sequence token: it counts, and has no text."""
EOS_SHOWN = "</s>"
"""What logprobs show in its place."""


def words_of(seed: bytes) -> Iterator[str]:
    """The words; every one but the first carries its leading space."""
    return map(itemgetter(1), _numbered(seed))


def tokens_of(seed: bytes) -> Iterator[Token]:
    """The same words with their ids."""
    return (Token(FIRST_WORD_ID + number, text) for number, text in _numbered(seed))


def _numbered(seed: bytes) -> Iterator[tuple[int, str]]:
    space = ""
    counter = 0
    while True:
        numbers = blake2b(counter.to_bytes(8, "big"), key=seed).digest()
        for high, low in zip(numbers[::2], numbers[1::2], strict=True):
            yield high << 8 | low, space + _SYLLABLES[high] + _SYLLABLES[low]
            space = " "
        counter += 1


def word(number: int) -> str:
    """The word of a number of 16 bits, without a space."""
    return _SYLLABLES[number >> 8 & 255] + _SYLLABLES[number & 255]


def other_token(text: str, argument: str = "") -> Token:
    """The token of a text that is no word of the model."""
    number = blake2b(text.encode("utf-8", "surrogatepass"), digest_size=2).digest()
    return Token(FIRST_OTHER_ID + int.from_bytes(number, "big"), text, argument)
