"""Errors as vLLM answers them: `{"error": {"message", "type", "param", "code"}}`."""

import json
from http import HTTPStatus

_TYPES = {
    400: "BadRequestError",
    404: "NotFoundError",
    500: "InternalServerError",
    503: "ServiceUnavailableError",
}


class ApiError(Exception):
    """A request ends with this status and message."""

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param

    def body(self) -> bytes:
        """The JSON body, as vLLM shapes it."""
        kind = _TYPES.get(self.status) or HTTPStatus(self.status).phrase
        error = {
            "message": self.message,
            "type": kind,
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
