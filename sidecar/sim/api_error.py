"""Errors as vLLM answers them: `{"error": {"message", "type", "param", "code"}}`."""

import json
from http import HTTPStatus
from typing import Any

_TYPES = {
    400: "BadRequestError",
    404: "NotFoundError",
    500: "InternalServerError",
    503: "ServiceUnavailableError",
}
MAX_SHOWN_INPUT = 200  # characters of the value at fault that an error repeats


class ApiError(Exception):
    """A request ends with this status and message; `kind` None: vLLM's type for the status.

    A refusal that names a parameter says so at its end, with the value if there is one.
    """

    is_validation = False
    """Found before any handler of vLLM ran, so of OpenAI's shape on every path."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        kind: str | None = None,
        value: Any = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        shown = f", value={value}" if value is not None else ""
        self.message = f"{message} (parameter={param}{shown})" if shown else message
        self.param = param
        self.kind = kind or _TYPES.get(status) or HTTPStatus(status).phrase

    def body(self) -> bytes:
        """The JSON body, as vLLM shapes it."""
        error = {
            "message": self.message,
            "type": self.kind,
            "param": self.param,
            "code": self.status,
        }
        return json.dumps({"error": error}).encode()


class EngineDead(ApiError):
    """The engine core has died; every request ends like this from then on."""

    def __init__(self) -> None:
        super().__init__(
            500,
            "EngineCore encountered an issue. See stack trace (above) for the root cause.",
        )


class InvalidBody(ApiError):
    """A body that vLLM's request models refuse: 400 of type "Bad Request".

    `problem` is what is wrong, `path` the field, `rule` pydantic's name of the broken rule.
    """

    is_validation = True

    def __init__(self, path: str, rule: str, problem: str, value: Any = None) -> None:
        where = f"body.{path}" if path else "body"
        found = {"type": rule, "loc": where, "msg": problem, "input": _shown(value)}
        super().__init__(400, f"1 validation error:\n  {found}", where, "Bad Request")


class BrokenMessage(ApiError):
    """As `BrokenRule`, of Messages, whose models raise errors that pydantic words."""

    is_validation = True

    def __init__(self, problem: str, param: str = "body") -> None:
        found = {"type": "value_error", "loc": "body", "msg": f"Value error, {problem}"}
        super().__init__(400, f"1 validation error:\n  {found}", param, "Bad Request")


class BrokenRule(ApiError):
    """A body whose fields contradict each other or a limit: found where `InvalidBody` is, in the
    words of vLLM's own error."""

    is_validation = True

    def __init__(self, problem: str, param: str | None = None) -> None:
        super().__init__(400, f"{problem} (parameter={param})" if param else problem, param)


def _shown(value: Any) -> Any:
    if isinstance(value, list | dict):
        return f"<{type(value).__name__} of {len(value)} items>"
    if isinstance(value, str) and len(value) > MAX_SHOWN_INPUT:
        return value[:MAX_SHOWN_INPUT] + "...[truncated]"
    return value
