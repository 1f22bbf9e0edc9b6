"""One request of the mixed load, and what a right pool answers to it.

Pure: everything comes from a seed, so that the same seed asks the same questions again.
"""

import gzip
import json
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

from sidecar.sim.model import Api, expected_choices

Leaving = Literal["upload", "time", "bytes"]
MODEL = "sim-model"
PATHS: dict[Api, str] = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
WORDS = (3, 40, 400, 4000)
"""of a prompt; the longest is 27 KB, more than one buffer of a socket or of Envoy"""
WORD_WEIGHTS = (40, 40, 18, 2)
TOKENS = (1, 60)
LEAVES_S = 1.2
"""a client that leaves does so within this; most answers take less"""


@dataclass(frozen=True, slots=True)
class Leave:
    """A client that does not wait for its answer: `after` is seconds, bytes of the answer, or (in
    the upload, of which half was sent) seconds again."""

    phase: Leaving
    after: float


@dataclass(frozen=True, slots=True)
class Question:
    """A request. `texts` are the right answer's choices; `refusal` is the only right status of a
    request that must be refused, else None."""

    name: str
    """also its x-request-id, by which the access log finds it"""
    kind: str
    method: str
    path: str
    body: bytes
    is_streamed: bool = False
    texts: tuple[str, ...] = ()
    refusal: int | None = None
    leave: Leave | None = None
    encoding: str | None = None

    @property
    def is_good(self) -> bool:
        """A right pool answers 200."""
        return self.refusal is None


def make_question(seed: str, number: int) -> Question:
    """Question `number` of the load that `seed` names."""
    rng = Random(f"{seed}/{number}")
    name = f"{seed}-{number}".replace("/", "-")
    draw = rng.random()
    if draw < 0.05:
        return _bad(rng, name)
    if draw < 0.08:
        return _unknown(rng, name)
    if draw < 0.10:
        return Question(name, "models", "GET", "/v1/models", b"")
    return _model_request(rng, name)


def _model_request(rng: Random, name: str) -> Question:
    api: Api = rng.choice(("completions", "chat"))
    tokens = rng.randint(*TOKENS)
    is_streamed = rng.random() < 0.6
    body: dict[str, Any] = {"model": MODEL, "max_tokens": tokens, "stream": is_streamed}
    if is_streamed and rng.random() < 0.3:
        body["stream_options"] = {"include_usage": True}
    if api == "chat":
        body["messages"] = [
            {"role": "system", "content": "Be short."},
            {"role": "user", "content": _prompt(rng, name)},
        ]
    else:
        body["prompt"] = _prompt(rng, name)
    kind = api.removesuffix("s")
    if rng.random() < 0.1:
        kind = "aggregated"
        if api == "completions" and rng.random() < 0.5:
            body["prompt"] = [_prompt(rng, name), "and another"]
        else:
            body["n"] = 2
    return Question(
        name,
        f"{kind} {'streamed' if is_streamed else 'whole'}",
        "POST",
        PATHS[api],
        json.dumps(body).encode(),
        is_streamed,
        texts=expected_choices(api, body),
        leave=_leave(rng, is_streamed) if rng.random() < 0.15 else None,
    )


def _prompt(rng: Random, name: str) -> str:
    (words,) = rng.choices(WORDS, WORD_WEIGHTS)
    return f"{name}: " + " ".join(str(rng.randrange(10**6)) for _ in range(words))


def _leave(rng: Random, is_streamed: bool) -> Leave:
    draw = rng.random()
    if draw < 0.15:
        return Leave("upload", rng.uniform(0.0, 0.5))
    if is_streamed and draw < 0.5:
        return Leave("bytes", rng.randint(1, 4000))
    return Leave("time", rng.uniform(0.0, LEAVES_S))


def _bad(rng: Random, name: str) -> Question:
    """What must be refused with 4xx: by the sidecar, or by an engine."""
    good = {"model": MODEL, "prompt": name, "max_tokens": 3}
    bodies: tuple[tuple[Any, int, str | None], ...] = (
        (b'{"prompt": "half', 400, None),
        (b"[1, 2]", 400, None),
        (b"", 400, None),
        ({"model": MODEL, "max_tokens": 3}, 400, None),
        ({**good, "max_tokens": 0}, 400, None),
        ({**good, "max_tokens": "three"}, 400, None),
        (gzip.compress(json.dumps(good).encode(), mtime=0), 415, "gzip"),
    )
    body, status, encoding = rng.choice(bodies)
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Question(
        name, "bad body", "POST", PATHS["completions"], data, refusal=status, encoding=encoding
    )


def _unknown(rng: Random, name: str) -> Question:
    method, path, status = rng.choice(
        (
            ("POST", "/v1/nothing", 404),
            ("GET", "/metrics", 404),
            ("GET", "/v1/completions", 405),
            ("DELETE", "/v1/models", 405),
        )
    )
    return Question(name, "unknown path", method, path, b"", refusal=status)
