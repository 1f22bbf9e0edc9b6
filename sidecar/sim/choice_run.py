"""One choice of an answer, token by token: where it ends, and what of its text may be shown."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, Self

from sidecar.sim.sampling import Sampling
from sidecar.sim.words import EOS, Token

Finish = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Call:
    """The tool call that a choice makes; its arguments are in its tokens."""

    id: str
    name: str


class Step(NamedTuple):
    """What one token adds. `text` may be less than the token's: a stop string may have begun."""

    token: Token
    number: int
    """1 for the first token."""
    text: str
    finish: Finish | None = None
    stop_reason: str | int | None = None


class ChoiceRun:
    """The steps of one choice; a finite sequence of tokens is followed by the end of sequence.

    Invariant: the texts of all steps together are the text of the answer.
    """

    def __init__(
        self,
        tokens: Iterator[Token],
        sampling: Sampling,
        eos_at: int | None,
        call: Call | None = None,
    ) -> None:
        self.call = call
        self.tokens: list[Token] = []
        self.count = 0
        self.text = ""
        self.finish: Finish | None = None
        self.stop_reason: str | int | None = None
        self._source = tokens
        self._sampling = sampling
        self._eos_at = sampling.ends_at(eos_at)
        self._sent = 0
        is_held = bool(sampling.stop) and not sampling.include_stop
        self._held_back = max(map(len, sampling.stop)) - 1 if is_held else 0

    @classmethod
    def of_words(cls, text: str, sampling: Sampling) -> Self:
        """One that has finished by length, of which only text and count are of interest."""
        run = cls(iter(()), sampling, None)
        run.text, run.count, run.finish = text, sampling.max_tokens, "length"
        return run

    def step(self) -> Step:
        """The next token; not to be called once it has finished."""
        assert self.finish is None
        number = self.count = self.count + 1
        token = EOS if number == self._eos_at else next(self._source, EOS)
        self.tokens.append(token)
        self._end_with(token, number)
        shown = len(self.text) if self.finish else max(self._sent, len(self.text) - self._held_back)
        text, self._sent = self.text[self._sent : shown], shown
        return Step(token, number, text, self.finish, self.stop_reason)

    def run(self) -> None:
        """All that is left."""
        while self.finish is None:
            self.step()

    def _end_with(self, token: Token, number: int) -> None:
        """Append a token's text and see whether it ends the choice: as vLLM's, in this order."""
        sampling = self._sampling
        if token is EOS:
            self.finish = "stop"
            return
        may_stop = number > sampling.min_tokens
        if may_stop and token.id in sampling.stop_token_ids:
            self.finish, self.stop_reason = "stop", token.id
            if sampling.include_stop:
                self.text += token.text
            return
        start = len(self.text)
        self.text += token.text
        if may_stop and sampling.stop and self._cut(start):
            return
        if number == sampling.max_tokens:
            self.finish = "length"

    def _cut(self, start: int) -> bool:
        """Cut the text at the stop string that is complete first, from `start` on."""
        ends = [
            (at + len(stop), stop)
            for stop in self._sampling.stop
            if (at := self.text.find(stop, max(0, start - len(stop) + 1))) >= 0
        ]
        if not ends:
            return False
        end, stop = min(ends, key=lambda one: one[0])
        self.text = self.text[: end if self._sampling.include_stop else end - len(stop)]
        self.finish, self.stop_reason = "stop", stop
        return True
