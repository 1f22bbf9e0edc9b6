"""Log probabilities: numbers that follow from a token and its place, in vLLM's shapes.

The sampled token comes first and is the likeliest; each alternative is half as likely as the last.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from sidecar.sim.words import EOS, EOS_SHOWN, FIRST_WORD_ID, Token, word

_STEP = 0.6931  # ln 2


def _shown(token: Token, by_id: bool = False) -> str:
    if by_id:
        return f"token_id:{token.id}"
    return EOS_SHOWN if token is EOS else token.text


def _logprob(token: Token, place: int) -> float:
    return -round(((token.id * 31 + place * 17) % 1000) / 1000 + 0.001, 4)


def _candidates(
    token: Token, place: int, count: int, chosen: Sequence[int] = ()
) -> list[tuple[Token, float]]:
    """The sampled token and its alternatives, at least the token itself."""
    first = _logprob(token, place)
    if chosen:
        others = [Token(one, _text_of(one)) for one in chosen if one != token.id]
    else:
        numbers = ((token.id * 7 + place + k * 4099) % 65536 for k in range(1, count))
        others = [Token(FIRST_WORD_ID + n, " " + word(n)) for n in numbers]
    return [(token, first)] + [
        (other, round(first - _STEP * k, 4)) for k, other in enumerate(others, 1)
    ]


def _text_of(number: int) -> str:
    number -= FIRST_WORD_ID
    return " " + word(number) if 0 <= number < 65536 else f"<{number + FIRST_WORD_ID}>"


class LogprobShape:
    """How a request wants them: `count` alternatives, or those of `chosen` ids."""

    def __init__(self, count: int, chosen: Sequence[int] = (), by_id: bool = False) -> None:
        self._count = count
        self._chosen = chosen
        self._by_id = by_id

    def completion(
        self,
        tokens: Sequence[Token],
        first_place: int = 1,
        offset: int = 0,
        has_start: bool = False,
    ) -> dict[str, Any]:
        """Completions': lists side by side. With `has_start` the first token has no number."""
        offsets: list[int] = []
        numbers: list[float | None] = []
        tops: list[dict[str, float] | None] = []
        names = [_shown(token, self._by_id) for token in tokens]
        for place, (token, name) in enumerate(zip(tokens, names, strict=True), first_place):
            offsets.append(offset)
            offset += len(name)
            if has_start and place == first_place:
                numbers.append(None)
                tops.append(None)
                continue
            found = _candidates(token, place, self._count, self._chosen)
            numbers.append(found[0][1])
            tops.append({_shown(one, self._by_id): number for one, number in found})
        return {
            "text_offset": offsets,
            "token_logprobs": numbers,
            "tokens": names,
            "top_logprobs": tops,
        }

    def chat(self, tokens: Iterable[Token], first_place: int = 1) -> list[dict[str, Any]]:
        """Chat's `content`, and that of Responses."""
        content = []
        for place, token in enumerate(tokens, first_place):
            found = _candidates(token, place, self._count, self._chosen)
            tops = found if self._chosen else found[: self._count]
            content.append(
                {
                    **self._entry(token, found[0][1]),
                    "top_logprobs": [self._entry(*one) for one in tops],
                }
            )
        return content

    def _entry(self, token: Token, number: float) -> dict[str, Any]:
        name = _shown(token, self._by_id)
        return {"token": name, "logprob": number, "bytes": list(name.encode("utf-8", "replace"))}


def prompt_logprobs(tokens: Sequence[Token], count: int) -> list[dict[str, Any] | None]:
    """vLLM's `prompt_logprobs`: null for the first token, then candidates by token id."""
    listed: list[dict[str, Any] | None] = [None]
    for place, token in enumerate(tokens[1:], 2):
        listed.append(
            {
                str(one.id): {"logprob": number, "rank": rank, "decoded_token": _shown(one)}
                for rank, (one, number) in enumerate(_candidates(token, place, count), 1)
            }
        )
    return listed
