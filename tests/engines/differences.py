"""What is known to differ, and why: a pair's answers from those of one engine, and those of a tiny
model of text from the rows. Invariant: a run fails for what it sees and is not named here, and for
what is named and not seen.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from tests.engines.fleet import Kind
from tests.engines.kinds import REAL


@dataclass(frozen=True)
class OtherStatus:
    """Engines of these tests answer the row with another status than it says, in all its forms."""

    feature: str
    status: int
    is_real: bool
    """the simulator answers as the row says"""
    why: str


_CONTEXT = "the context of these engines is 1,024 tokens"
_TEXT_MODEL = "vLLM serves pooling of models for it alone, and these engines' model writes text"

OTHER_STATUS = [
    OtherStatus(
        "completions: a long prompt, over many KV blocks",
        400,
        True,
        f"{_CONTEXT}, and a word is several",
    ),
    OtherStatus("completions: a prompt of 4 MB", 400, False, _CONTEXT),
    OtherStatus("chat-completions: an image as a data URL", 400, True, "a model of text alone"),
    OtherStatus("embeddings: embeddings", 404, True, _TEXT_MODEL),
    OtherStatus("-pooling: pooling", 404, True, _TEXT_MODEL),
    OtherStatus("-classify: classify", 404, True, _TEXT_MODEL),
    OtherStatus("score: score", 404, True, _TEXT_MODEL),
    OtherStatus("rerank: rerank", 404, True, _TEXT_MODEL),
]


@dataclass(frozen=True)
class OfAPair:
    """By this a client can tell that two engines answered, and not one."""

    row: str
    """its name in `rows`"""
    at: str
    """the path in the answer, `[]` for any event"""
    kinds: tuple[Kind, ...]
    why: str


def _usage(feature: str, field: str, kinds: tuple[Kind, ...], why: str) -> Iterator[OfAPair]:
    """Of a response: the whole one has it once, the streamed one in its last event."""
    for row, where in ((feature, "answer"), (f"{feature}, streamed", "answer.other[].response")):
        yield OfAPair(row, f"{where}.usage.input_tokens_details.{field}", kinds, why)


_PUSHED = tuple(kind for kind in REAL if kind.mode == "WRITE")
_CACHED = "in WRITE decode counts what prefill pushed as found in its own cache"
_WRITTEN = "decode wrote no block of the prompt into its cache: all came from prefill"
_TELL = "responses: a response"
_TALK = "responses: a response to a conversation, with instructions"
_OVER_A_BLOCK = "responses: a response that ends at its first token"

OF_A_PAIR = [
    *_usage(_TELL, "cached_tokens", _PUSHED, _CACHED),
    *_usage(_TALK, "cached_tokens", _PUSHED, _CACHED),
    *_usage(_OVER_A_BLOCK, "cached_tokens", _PUSHED, _CACHED),
    *_usage(_OVER_A_BLOCK, "cache_write_tokens", tuple(REAL), _WRITTEN),
]
