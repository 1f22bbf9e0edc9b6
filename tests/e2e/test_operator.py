"""What an operator looks at: a drain that stays, a request found by its id, failures by name."""

import json
import socket
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.stack import Stack, http, until

pytestmark = pytest.mark.e2e


def test_a_drain_that_is_asked_for_stays(stack_of: Callable[..., Stack]) -> None:
    """POST /drain: refused from then on, also long after nothing is in flight; SIGTERM ends it."""
    stack = stack_of()
    stack.fleet([1], [1])
    assert http("POST", f"{stack.admin}/drain")[0] == 200
    until(lambda: "drained" in stack.log(), "drained", 5)
    until(lambda: stack.log().count("worker 0 is connected") == 1, "one control process", 1)
    for _ in range(20):
        assert http("GET", f"{stack.observe}/readyz") == (503, b"draining\n")
        # The listener is closed: a balancer that comes anew finds nobody.
        status, body = http("POST", f"{stack.url}/v1/completions", {"prompt": "x"})
        assert status == 0 or (status == 503 and b"draining" in body)
    assert stack.stop() == 0


def test_an_upload_that_stops_is_a_408(stack_of: Callable[..., Stack]) -> None:
    """Half a body, then nothing: 408 in OpenAI's shape after the limit, and no fault here."""
    stack = stack_of({"request": {"upload_timeout_s": 1}})
    stack.fleet([1], [1])
    host, port = stack.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=5) as client:
        client.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            b'content-length: 100\r\n\r\n{"prompt'
        )
        answer = b""
        while b"}}" not in answer and (data := client.recv(4096)):
            answer += data
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"x-pd-error: upload_timeout" in answer
    assert "ERROR" not in stack.log()
    until(lambda: stack.in_flight() == {"prefill": 0, "decode": 0}, "nothing is held", 2)


def test_a_request_is_found_by_the_clients_own_id(stack_of: Callable[..., Stack]) -> None:
    """In /exchanges while it runs, in the access log afterwards, and on its answer."""
    stack = stack_of()
    (prefill,), _ = stack.fleet([1], [1])
    prefill.ask("hold", hold=True)
    body = json.dumps({"model": "sim-model", "prompt": "x", "max_tokens": 2}).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        f"x-request-id: find-me\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    host, port = stack.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as client:
        client.sendall(head.encode() + body)
        until(lambda: [e["request_id"] for e in stack.exchanges()] == ["find-me"], "it is listed")
        prefill.ask("hold", hold=False)
        answer = b""
        while data := client.recv(4096):
            answer += data
    assert b"x-request-id: find-me" in answer
    (entry,) = until(
        lambda: [e for e in stack.access_log() if e["path"] == "/v1/completions"],
        "the access log is written",
        15,
    )
    assert entry["request_id"] == "find-me"
    assert entry["prefill"].startswith("p")
    assert entry["decode"].startswith("d")


def test_a_failed_prefill_is_named(stack_of: Callable[..., Stack]) -> None:
    """The answer carries the slot, the log the instance, the reason and the request."""
    stack = stack_of({"prefill": {"attempts": 1}})
    (prefill,), _ = stack.fleet([1], [1])
    prefill.ask("faults", leg="prefill", kind="status", status=500)
    request = urllib.request.Request(
        f"{stack.url}/v1/completions",
        data=b'{"model": "sim-model", "prompt": "x"}',
        headers={"content-type": "application/json", "x-request-id": "mine"},
    )
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=10)
    with caught.value as error:
        assert error.code == 502
        assert error.headers["x-pd-error"] == "prefill_error"
        assert error.headers["x-pd-prefill"].endswith("#0")
    line = f"prefill at {prefill.address}#0: prefill_error, request mine"
    until(lambda: line in stack.log(), "the failure is logged", 3)


def test_a_clean_stop_warns_of_nothing(stack_of: Callable[..., Stack]) -> None:
    """Neither control nor workers take a stop for a crash."""
    stack = stack_of(workers=2)
    stack.fleet([1], [1])
    assert stack.stop() == 0
    assert "WARNING" not in stack.log()
    assert "ERROR" not in stack.log()
    assert Path(stack.folder / "run" / "registry").exists(), "real engines are remembered"
