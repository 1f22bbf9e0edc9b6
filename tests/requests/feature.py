"""One thing that a request may ask for, and who must serve it."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

MODEL = "sim-model"


class Served(StrEnum):
    """The words are those of docs/requests.md."""

    PAIR = "through prefill and decode"
    ALONE = "whole by one prefill instance"
    PREFILL = "through prefill and decode; its engine's own refusal"
    SINGLE = "by one instance"


COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"


@dataclass(frozen=True)
class Feature:
    name: str
    """in words, for the table"""
    path: str
    body: dict[str, Any]
    """without the model, which the test adds"""
    served: Served = Served.PAIR
    status: int = 200
    streams: bool = True
    """to be asked for streamed as well"""
    method: str = "POST"
    modes: tuple[str, ...] = ("READ", "WRITE")
    in_the_other: str = ""
    """how it is served in the mode that is not among them"""

    @property
    def test_id(self) -> str:
        api = self.path.removeprefix("/v1/").replace("/", "-")
        return f"{api}: {self.name}".replace("`", "")
