"""The answer of the fault `status`: what was asked for, else as vLLM words that status."""

import json

from aiohttp import web

from sidecar.sim.api_error import ApiError
from sidecar.sim.faults import Fault

ENGINE_PAUSED = "Generation is paused. Please retry after it resumes."
"""vLLM's `engine_paused` (protocol e) as a client sees it: the code stays inside the engine, the
answer is a 503 of type ServiceUnavailableError (v1/engine/core.py, error_response.py of 0.33)."""


def error_answer(fault: Fault) -> web.Response:
    """The whole answer."""
    body, kind = fault.body, "application/json"
    if body is None:
        message = ENGINE_PAUSED if fault.status == 503 else "sim: a fault that was asked for"
        text = ApiError(fault.status, message).body().decode()
    elif isinstance(body, str):
        text, kind = body, "text/plain"
    else:
        text = json.dumps(body)
    headers = {"Content-Type": kind}
    answer = web.Response(status=fault.status, body=text.encode(), headers=headers)
    answer.headers.update(fault.headers)
    return answer
