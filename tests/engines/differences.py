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


@dataclass(frozen=True)
class OfTheSimulator:
    """The simulator, told to be that version, answers a row otherwise than vLLM, in all its
    forms."""

    feature: str
    at: str
    """the last name in the path, empty: most of the answer"""
    why: str


def _of(features: tuple[str, ...], names: tuple[str, ...], why: str) -> Iterator[OfTheSimulator]:
    for feature in features:
        for name in names:
            yield OfTheSimulator(feature, name, why)


_NO_CALL = "a random model does not call a tool by itself, and ends no JSON within 40 tokens"
_POOLED = tuple(one.feature for one in OTHER_STATUS if one.why == _TEXT_MODEL)

OF_THE_SIMULATOR = [
    *_of(
        (
            "completions: an answer that ends by itself",
            "completions: an answer that ends at its first token",
            "completions: min_tokens",
            "chat-completions: an answer that ends by itself",
            "chat-completions: min_tokens",
        ),
        ("finish_reason",),
        "`<eos:N>` ends an answer of the simulator; to a tokenizer it is text",
    ),
    *_of(
        (
            "responses: a response that ends at its first token",
            "messages: a message that ends at its first token: nothing masks that on the prefill "
            "leg",
        ),
        ("",),
        "`<eos:1>` ends an answer of the simulator; to a tokenizer it is text",
    ),
    *_of(
        ("completions: stop: one string", "chat-completions: stop"),
        ("finish_reason", "stop_reason"),
        "the words of the simulator have an `a`, those of the tiny model have none",
    ),
    OfTheSimulator(
        "messages: a message with system and stop_sequences",
        "stop_sequence",
        "the words of the simulator have an `a`, those of the tiny model have none",
    ),
    *_of(
        (
            "chat-completions: tools: tool_choice auto, and a call",
            "chat-completions: tools: tool_choice required",
            "chat-completions: tools: a named one",
        ),
        ("finish_reason", "tool_calls"),
        _NO_CALL,
    ),
    OfTheSimulator(
        "chat-completions: tools: tool_choice auto, and a call",
        "content",
        _NO_CALL,
    ),
    *_of(
        (
            "chat-completions: response_format: an object",
            "chat-completions: response_format: a schema",
        ),
        ("finish_reason",),
        "a random model ends no JSON within as many tokens",
    ),
    OfTheSimulator(
        "completions: a long prompt, over many KV blocks",
        "status",
        "a word is a token of the simulator, and several of the tiny model's",
    ),
    *_of(
        ("completions: a prompt of 4 MB",),
        ("message", "param"),
        "vLLM refuses by the number of characters what no tokenizer could shorten enough; the "
        "simulator counts tokens",
    ),
    OfTheSimulator(
        "chat-completions: an image as a data URL", "status", "the simulator sees images"
    ),
    OfTheSimulator(
        "chat-completions: an image that is none", "message", "the simulator sees images"
    ),
    *_of(
        ("a prefill leg of moriio",),
        ("remote_handshake_port", "remote_notify_port"),
        "text where an operator wrote text, as in these engines' configuration; the simulator has "
        "numbers",
    ),
    OfTheSimulator(
        "a prefill leg of /v1/responses",
        "output",
        "the tiny model's first token is a part of a character, so there is no text yet",
    ),
    *_of(_POOLED, ("status",), "the simulator pools and writes text; an engine does one of them"),
]
