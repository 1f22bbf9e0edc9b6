"""curl: what a person types, and what it sends by itself for large bodies."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.clients.pool import ASKED, MODEL, Pool, chat_text

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed"),
]
JSON = ("-H", "content-type: application/json")


def curl(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = ["curl", "-sS", "--max-time", "20", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)


def said(stream: str) -> str:
    """The text of server-sent events."""
    events = [line.removeprefix("data: ") for line in stream.splitlines() if line]
    assert events.pop() == "[DONE]"
    choices = [choice for event in events for choice in json.loads(event)["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


@pytest.mark.usefixtures("by_pairs")
@pytest.mark.parametrize("version", ["--http1.1", "--http1.0", "--http2-prior-knowledge"])
def test_a_stream(pool: Pool, version: str) -> None:
    """As the README has it, in every version of HTTP."""
    body = {"model": MODEL, "messages": ASKED, "max_tokens": 12, "stream": True}
    done = curl("-N", version, f"{pool.base}/chat/completions", *JSON, "-d", json.dumps(body))
    assert said(done.stdout) == chat_text(12)


@pytest.mark.usefixtures("by_pairs")
def test_each_token_as_it_comes(pool: Pool) -> None:
    """Nothing holds a stream back: the first events are read while the last is minutes off."""
    pool.pace(tokens_per_s=1)
    body = {"model": MODEL, "messages": ASKED, "max_tokens": 400, "stream": True}
    command = ["curl", "-sSN", "--max-time", "20", f"{pool.base}/chat/completions", *JSON]
    with subprocess.Popen([*command, "-d", json.dumps(body)], stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        lines = [running.stdout.readline() for _ in range(6)]  # each event is followed by a blank
        running.kill()
    assert [json.loads(line[6:])["object"] for line in lines[::2]] == ["chat.completion.chunk"] * 3


@pytest.mark.usefixtures("by_pairs")
@pytest.mark.parametrize("more", [(), ("-H", "transfer-encoding: chunked")])
def test_a_large_file_that_waits_for_its_100(
    pool: Pool, tmp_path: Path, more: tuple[str, ...]
) -> None:
    """curl asks with `Expect: 100-continue`, and is told to go on at once."""
    messages = [{"role": "user", "content": "word " * 400_000}]
    file = tmp_path / "body.json"
    file.write_text(json.dumps({"model": MODEL, "messages": messages, "max_tokens": 4}))
    done = curl(
        "-v", "-H", "expect: 100-continue", "--expect100-timeout", "15", "-X", "POST", "-T",
        str(file), f"{pool.base}/chat/completions", *JSON, *more,
    )  # fmt: skip
    assert "< HTTP/1.1 100 Continue" in done.stderr
    answer = json.loads(done.stdout)
    assert answer["choices"][0]["message"]["content"] == chat_text(4, messages)


def test_a_head_request(pool: Pool) -> None:
    """`curl -I` on the readiness path has the status and no body."""
    assert "HTTP/1.1 200" in curl("-I", f"{pool.url}/health").stdout


def test_fail_with_body(pool: Pool) -> None:
    """An error is an exit code for scripts, with the reason in the body."""
    command = ["curl", "-sS", "--fail-with-body", f"{pool.base}/chat/completions", *JSON, "-d", "{"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 22
    assert "JSON" in json.loads(done.stdout)["error"]["message"]
