"""A pool in one transfer mode, and what a correct one answers."""

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from sidecar.sim.model import expected_choices, expected_text
from tests.e2e.stack import Engine, Stack, until

MODEL = "sim-model"
KEY = "a key that nobody asks for"
QUESTION = "Tell me about rivers"
ASKED = [{"role": "user", "content": QUESTION}]


class Pool:
    """Two prefill and two decode engines, of one rank and of two, behind `pd-sidecar up`."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.stack = Stack({"engine": {"release_kv": True}, "probe": {"interval_s": 0.3}})

    def __enter__(self) -> "Pool":
        self.stack.start()
        self.prefill, self.decode = self.stack.fleet([2, 1], [1, 2], mode=self.mode)
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.stack.close()

    @property
    def url(self) -> str:
        return self.stack.url

    @property
    def base(self) -> str:
        """What OpenAI's clients call `base_url`."""
        return f"{self.url}/v1"

    @property
    def engines(self) -> list[Engine]:
        return [*self.prefill, *self.decode]

    def pace(self, *, ttft_ms: float = 0, tokens_per_s: float = 0) -> None:
        """How fast the decode engines are; without arguments: as fast as they can be."""
        for engine in self.decode:
            engine.ask("pace", ttft_ms=ttft_ms, tokens_per_s=tokens_per_s)

    def legs(self, kind: str) -> int:
        """How many the engines have been asked for: `prefill`, `decode`, or `plain` (whole)."""
        return sum(sum(engine.state()["ranks"][kind]) for engine in self.engines)

    def is_at_rest(self) -> bool:
        """Nothing is in flight, and no engine works or holds KV blocks."""
        states = [engine.state() for engine in self.engines]
        return sum(self.stack.in_flight().values()) == 0 and all(
            not state["running"] and not state["waiting"] and not state["held_blocks"]
            for state in states
        )

    def check_rest(self) -> None:
        """Wait for it; and no engine has met what it did not expect."""
        until(self.is_at_rest, f"nothing is left over: {self.stack.in_flight()}")
        errors = {engine.address: engine.state()["errors"] for engine in self.engines}
        assert not any(errors.values()), errors


def chat_text(max_tokens: int | None = None, messages: Any = ASKED, **more: Any) -> str:
    """What the model says to `messages`; `more` are other fields of the body."""
    return expected_text("chat", {"messages": messages, **more}, max_tokens)


def completion_text(prompt: Any, max_tokens: int | None = None, **more: Any) -> str:
    return expected_text("completions", {"prompt": prompt, **more}, max_tokens)


def completion_texts(prompt: Any, **more: Any) -> Sequence[str]:
    return expected_choices("completions", {"prompt": prompt, **more})


def went_through_both(headers: Mapping[str, str]) -> bool:
    """By the receipt."""
    return headers.get("x-pd-prefill", "")[:1] == "p" and headers.get("x-pd-decode", "")[:1] == "d"
