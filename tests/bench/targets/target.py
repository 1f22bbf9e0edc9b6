"""What is measured: something that takes chat requests, and the processes that it is made of."""

import http.client
from abc import ABC, abstractmethod

from tests.bench.mock_answers import PATH, chat_body, decode_answer
from tests.e2e.stack import until

START_S = 60.0


class TargetError(Exception):
    """A target did not start or does not answer; the message says which and how."""


class Target(ABC):
    """One target, listening from its making on; `wait_ready` before it is measured."""

    name: str
    has_prefill_leg: bool = True
    address: str
    """host:port for clients"""
    registration: str | None = None
    """host:port for heartbeats"""

    @abstractmethod
    def processes(self) -> dict[int, str]:
        """Every process of it that lives, by pid, with what it is called in a table."""

    @abstractmethod
    def last_words(self) -> str: ...

    @abstractmethod
    def close(self) -> None: ...

    def wait_ready(self) -> None:
        """Until a request comes back with decode's own answer. Raises TargetError."""
        answers: list[str] = []

        def is_right() -> bool:
            status, body = ask(self.address)
            answers[:] = [f"{status} {body[:300]!r}"]
            return status == 200 and body == decode_answer().encode()

        try:
            until(is_right, "decode's answer", START_S)
        except AssertionError:
            words = f"{self.name}: {answers[0]} instead of decode's answer\n{self.last_words()}"
            raise TargetError(words) from None


def ask(address: str, body: bytes | None = None) -> tuple[int, bytes]:
    """One chat request; status 0 when nobody answers."""
    connection = http.client.HTTPConnection(address, timeout=10)
    try:
        headers = {"content-type": "application/json"}
        connection.request("POST", PATH, body or chat_body(600), headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException) as error:
        return 0, repr(error).encode()
    finally:
        connection.close()
