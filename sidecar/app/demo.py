"""`pd-sidecar demo`: everything with simulated engines, a few chat requests, then a clean stop.

Shows on stdout what a person wants to see and checks every answer against the simulated model; the
log of the sidecar's processes goes to a file. Every wait has a limit.
"""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any

import aiohttp

from sidecar.app.standard_streams import say
from sidecar.app.up import Up, fetch_json, local_url, run_dir_of
from sidecar.config import Config
from sidecar.errors import StartError
from sidecar.sim.model import expected_text
from sidecar.sim.options import SimOptions

FLEET = "2P2D"
MODEL = "sim-model"
QUESTIONS = (
    "What does a prefill engine do?",
    "And what does a decode engine do?",
    "Why does the KV cache travel between them?",
    "Who chose the two engines for this answer?",
)
EXPLANATION = """\
Each answer names the slots that served it, instance#rank, in the headers
x-pd-prefill and x-pd-decode. The simulated model answers in made-up words; each
depends on the question and on the KV blocks that went from prefill to decode.
"""
TOKENS = 24
TTFT_MS = 40.0
TOKENS_PER_S = 40.0
"""slow enough to be watched, fast enough not to be waited for"""
ANSWER_LIMIT_S = 20.0
QUIET_LIMIT_S = 10.0
"""an end reaches the slot table by the access log, up to 0.25 s later"""
POLL_S = 0.05
WIDTH = 78
INDENT = "   "


class DemoUp(Up):
    """`up` with the demo in it: a stop by a signal ends the demo too."""

    demo: asyncio.Task[list[str]] | None = None

    def stop(self) -> None:
        super().stop()
        if self.demo is not None:
            self.demo.cancel()  # a finished one takes no notice


class Demo:
    """One run. `show_status` prints the answer of /status."""

    def __init__(
        self,
        config: Config,
        engines: Sequence[SimOptions],
        show_status: Callable[[dict[str, Any]], None],
    ) -> None:
        self._config = config
        self._engines = [replace(e, ttft_ms=TTFT_MS, tokens_per_s=TOKENS_PER_S) for e in engines]
        self._show_status = show_status
        self._started = monotonic()

    async def run(self) -> int:
        """The exit code: 0, 1 if something was missing or wrong, 130 if it was cut short."""
        up = DemoUp(self._config, has_envoy=True, engines=self._engines, on_ready=self._begin)
        try:
            await up.run()
        finally:
            if up.demo is not None:
                up.demo.cancel()
                await asyncio.gather(up.demo, return_exceptions=True)
        if up.demo is None or up.demo.cancelled():
            say("\nstopped before the end")
            return 130
        faults = up.demo.result()
        say("stopped: Envoy, the sidecar and the engines have ended")
        for fault in faults:
            say(f"FAILED {fault}")
        return 1 if faults else 0

    def _begin(self, up: Up) -> None:
        assert isinstance(up, DemoUp)
        up.demo = asyncio.create_task(self._perform())
        up.demo.add_done_callback(lambda _: up.stop())

    async def _perform(self) -> list[str]:
        """What was missing or wrong."""
        url = local_url(self._config.edge.listen)
        say(f"ready after {monotonic() - self._started:.1f} s: the OpenAI API is at {url}/v1\n")
        say(EXPLANATION)
        faults = [
            f"answer {number}: {fault}"
            for number, question in enumerate(QUESTIONS, 1)
            if (fault := await self._ask(f"{url}/v1/chat/completions", number, question))
        ]
        found = await self._quiet()
        if found is None:
            return [*faults, f"the status does not say in flight 0 within {QUIET_LIMIT_S:g} s"]
        self._show_status(found)
        say("")
        return faults

    async def _ask(self, url: str, number: int, question: str) -> str | None:
        """Send one chat request and show its answer as it comes; what is wrong with it."""
        say(f"{number}  {question}")
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": question}],
            "max_tokens": TOKENS,
            "stream": True,
        }
        timeout = aiohttp.ClientTimeout(total=ANSWER_LIMIT_S)
        started = perf_counter()
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.post(url, json=body) as response,
            ):
                if response.status != 200:
                    return f"status {response.status}: {(await response.text()).strip()}"
                receipt = [response.headers.get(f"x-pd-{role}") for role in ("prefill", "decode")]
                say(f"{INDENT}x-pd-prefill: {receipt[0]}   x-pd-decode: {receipt[1]}")
                fault = await show_answer(response.content, expected_text("chat", body), started)
                return fault or (None if all(receipt) else "the route receipt is missing")
        except (aiohttp.ClientError, TimeoutError) as error:
            say("")
            return f"{type(error).__name__}: {error or f'not within {ANSWER_LIMIT_S:g} s'}"

    async def _quiet(self) -> dict[str, Any] | None:
        """The status once no request is in flight; None: not within the limit."""
        deadline = monotonic() + QUIET_LIMIT_S
        while monotonic() < deadline:
            found = await asyncio.to_thread(fetch_json, self._config.admin.listen, "/status")
            if found is not None and found["in_flight"] == 0:
                return dict(found)
            await asyncio.sleep(POLL_S)
        return None


async def show_answer(stream: aiohttp.StreamReader, expected: str, started: float) -> str | None:
    """Print the tokens as they come, wrapped, then the times since `started` (perf_counter).

    Returns what is wrong: the end is missing, or the text is not `expected`.
    """
    tokens: list[str] = []
    first_s: float | None = None
    column = WIDTH  # the first word begins a line
    async for token in read_tokens(stream):
        if first_s is None:
            first_s = perf_counter() - started
        tokens.append(token)
        word = token.strip()
        begins_line = column + 1 + len(word) > WIDTH
        lead = ("\n" if len(tokens) > 1 else "") + INDENT if begins_line else " "
        say(lead + word, end="")
        column = len(INDENT) + len(word) if begins_line else column + 1 + len(word)
    say("")
    if first_s is None:
        return "no token came"
    total_s = perf_counter() - started
    say(
        f"{INDENT}first token after {first_s * 1000:.0f} ms, "
        f"{len(tokens)} tokens in {total_s * 1000:.0f} ms\n"
    )
    return None if "".join(tokens) == expected else "the text is not the model's, or it was cut"


async def read_tokens(stream: aiohttp.StreamReader) -> AsyncIterator[str]:
    """The tokens of a streamed chat answer; ClientPayloadError if it has no [DONE].

    Reads to the very end: who leaves right after [DONE] may count as a client that went away.
    """
    is_done = False
    async for line in stream:
        if not line.startswith(b"data: "):
            continue
        payload = line.removeprefix(b"data: ").strip()
        if payload == b"[DONE]":
            is_done = True
            continue
        try:
            token = json.loads(payload)["choices"][0]["delta"].get("content")
        except (ValueError, LookupError):
            raise aiohttp.ClientPayloadError(f"not a token: {payload[:200]!r}") from None
        if token:
            yield token
    if not is_done:
        raise aiohttp.ClientPayloadError("the answer ended without [DONE]")


@contextlib.contextmanager
def stderr_into(path: Path) -> Iterator[None]:
    """Meanwhile what this process and its children write to stderr is appended to `path`.

    Raises StartError if that cannot be written.
    """
    try:
        path.parent.mkdir(mode=0o770, parents=True, exist_ok=True)
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
    except OSError as error:
        raise StartError(f"run_dir: {path}: {error.strerror}") from None
    kept = os.dup(2)
    os.dup2(log, 2)
    os.close(log)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)


def _kind(engine: SimOptions) -> str:
    return "NIXL" if engine.is_nixl else engine.mode


def run_demo(
    config: Config,
    engines: Sequence[SimOptions],
    show_status: Callable[[dict[str, Any]], None],
) -> int:
    """Run one demo in a new event loop and return its exit code. Raises StartError."""
    log = run_dir_of(config).path / "demo.log"
    counts = {role: sum(e.role == role for e in engines) for role in ("prefill", "decode")}
    say(
        f"pd-sidecar demo: {counts['prefill']} prefill and {counts['decode']} decode engines, "
        f"simulated ({_kind(engines[0])}), behind a real Envoy"
    )
    say(f"what the processes log is in {log}")

    async def run() -> int:
        return await Demo(config, engines, show_status).run()

    try:
        with stderr_into(log), contextlib.suppress(KeyboardInterrupt):
            return asyncio.run(run())
    except StartError as error:
        raise StartError(f"{error} (log: {log})") from None
    return 130
