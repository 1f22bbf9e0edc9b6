"""Real simulator processes for the tests, and both legs of an exchange driven by hand."""

import asyncio
import contextlib
import json
import os
import select
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import aiohttp
import pytest
import pytest_asyncio

from sidecar.sim.fleet import engine_command
from sidecar.sim.options import SimOptions

ROOT = Path(__file__).resolve().parents[2]
START_LIMIT_S = 20.0
PATHS = {
    "completions": "/v1/completions",
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
}


NIXL_PREFILL_PARAMS = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


@dataclass
class Engine:
    """One running simulator process."""

    options: SimOptions
    process: subprocess.Popen[bytes]
    lifeline: int
    stderr: IO[bytes]
    ready: dict[str, Any] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://{self.ready['http']}"

    @property
    def zmq_address(self) -> str:
        host = self.ready["http"].rsplit(":", 1)[0]
        ports = f"handshake:{self.ready['handshake_port']},notify:{self.ready['notify_port']}"
        return f"host:{host},{ports}"

    def peer_keys(self) -> dict[str, Any]:
        """The explicit keys by which the other leg names this engine."""
        return {
            "remote_host": self.ready["http"].rsplit(":", 1)[0],
            "remote_handshake_port": self.ready["handshake_port"],
            "remote_notify_port": self.ready["notify_port"],
            "remote_dp_size": self.options.dp_size,
            "remote_tp_size": self.options.tp_size,
        }

    def await_ready(self) -> None:
        stdout = self.process.stdout
        assert stdout is not None
        readable, _, _ = select.select([stdout], [], [], START_LIMIT_S)
        line = stdout.readline() if readable else b""
        assert line, f"not ready: exit status {self.process.poll()}"
        self.ready = json.loads(line)

    def close_lifeline(self) -> None:
        if self.lifeline >= 0:
            os.close(self.lifeline)
            self.lifeline = -1

    def complaints(self) -> str:
        """What the process wrote to stderr; closes it."""
        with self.stderr:
            self.stderr.seek(0)
            return self.stderr.read().decode()

    def end(self) -> int:
        """End the process by its lifeline; returns its exit status."""
        self.close_lifeline()
        try:
            return self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()
        finally:
            if self.process.stdout:
                self.process.stdout.close()


@dataclass
class Text:
    """What a client got: status, text, the bare events, and the whole JSON if not streamed."""

    status: int
    text: str = ""
    events: list[dict[str, Any]] = field(default_factory=list)
    json: dict[str, Any] = field(default_factory=dict)
    is_done: bool = False


@dataclass
class Reply:
    """An answer of any route: its JSON if it is one, its events with their names if streamed."""

    status: int
    json: Any = None
    events: list[tuple[str, Any]] = field(default_factory=list)
    is_done: bool = False
    """A stream's last event is [DONE]."""

    @property
    def choice(self) -> dict[str, Any]:
        return self.json["choices"][0]

    @property
    def error(self) -> dict[str, Any]:
        return self.json["error"]

    def named(self, name: str) -> list[Any]:
        return [data for given, data in self.events if given == name]


class Lab:
    """Starts engines and sends requests to them."""

    def __init__(self, http: aiohttp.ClientSession) -> None:
        self.http = http
        self.engines: list[Engine] = []

    def spawn(self, role: str, **options: Any) -> Engine:
        """Start a process without waiting for its readiness."""
        chosen = SimOptions(role=role, **options)
        child_end, our_end = os.pipe()
        stderr = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the engine
        process = subprocess.Popen(
            engine_command(chosen, child_end),
            stdout=subprocess.PIPE,
            stderr=stderr,
            pass_fds=(child_end,),
            cwd=ROOT,
        )
        os.close(child_end)
        engine = Engine(chosen, process, our_end, stderr)
        self.engines.append(engine)
        return engine

    def start(self, role: str, **options: Any) -> Engine:
        engine = self.spawn(role, **options)
        engine.await_ready()
        return engine

    def pair(self, mode: str, **options: Any) -> tuple[Engine, Engine]:
        both = [self.spawn(role, mode=mode, **options) for role in ("prefill", "decode")]
        for engine in both:
            engine.await_ready()
        return both[0], both[1]

    async def state(self, engine: Engine) -> dict[str, Any]:
        async with self.http.get(f"{engine.url}/sim/state") as response:
            return await response.json()

    async def control(self, engine: Engine, name: str, **given: Any) -> dict[str, Any]:
        async with self.http.post(f"{engine.url}/sim/{name}", json=given) as response:
            assert response.status == 200, await response.text()
            return await response.json()

    async def until(
        self, engine: Engine, is_so: Callable[[dict[str, Any]], bool], limit_s: float = 10.0
    ) -> dict[str, Any]:
        """Poll the engine's state until it is so; fails with the last state."""
        deadline = time.monotonic() + limit_s
        while True:
            state = await self.state(engine)
            if is_so(state):
                return state
            assert time.monotonic() < deadline, state
            await asyncio.sleep(0.01)

    async def until_alive(
        self, engine: Engine, life: int = 2, limit_s: float = 10.0
    ) -> dict[str, Any]:
        """Poll an engine that has died until its next life answers; returns its state."""
        deadline = time.monotonic() + limit_s
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                state = await self.state(engine)
                if state["lives"] >= life:
                    return state
            assert time.monotonic() < deadline, f"life {life} has not begun"
            await asyncio.sleep(0.01)

    async def until_refused(
        self, port: int, is_refused: bool = True, limit_s: float = 10.0
    ) -> None:
        """Poll until a port of 127.0.0.1 does or does not take connections."""
        deadline = time.monotonic() + limit_s
        while True:
            with socket.socket() as probe:
                probe.setblocking(False)
                try:
                    await asyncio.get_running_loop().sock_connect(probe, ("127.0.0.1", port))
                    was_refused = False
                except ConnectionRefusedError:
                    was_refused = True
            if was_refused is is_refused:
                return
            assert time.monotonic() < deadline, f"port {port}: refused is {was_refused}"
            await asyncio.sleep(0.01)

    def forget(self, engine: Engine) -> None:
        """An engine that ended itself: what it leaves is read here and not at the end."""
        self.engines.remove(engine)
        engine.end()
        assert not engine.complaints()

    async def ask(
        self,
        engine: Engine,
        api: str,
        body: dict[str, Any],
        rank: int | None = None,
        request_id: str | None = None,
    ) -> Text:
        headers = {"X-Request-Id": request_id or uuid.uuid4().hex}
        if rank is not None:
            headers["X-data-parallel-rank"] = str(rank)
        url = engine.url + PATHS[api]
        async with self.http.post(url, json=body, headers=headers) as response:
            raw = await response.text()
            if response.content_type != "text/event-stream":
                return _whole(response.status, json.loads(raw))
            return _streamed(response.status, raw)

    async def post(self, engine: Engine, path: str, body: dict[str, Any], **headers: str) -> Reply:
        """Any route, as it is."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.http.post(engine.url + path, json=body, headers=given) as response:
            raw = await response.text()
            if response.content_type == "text/event-stream":
                return _events(response.status, raw)
            return Reply(response.status, json.loads(raw) if raw else None)

    async def legs(
        self,
        pair: tuple[Engine, Engine],
        path: str,
        body: dict[str, Any],
        one_token: dict[str, Any],
    ) -> tuple[Reply, Reply]:
        """READ, any API: the prefill leg, then the decode leg with what it handed over."""
        prefill, decode = pair
        params = {
            "do_remote_decode": True,
            "do_remote_prefill": False,
            "transfer_id": f"tx-{uuid.uuid4().hex}",
            "remote_engine_id": None,
            "remote_block_ids": None,
        }
        leg = {**body, **one_token, "stream": False, "kv_transfer_params": params}
        first = await self.post(prefill, path, leg)
        assert first.status == 200, first
        handed_over = first.json.get("kv_transfer_params")
        if handed_over is not None:
            handed_over = {**handed_over, "remote_dp_size": 1, "remote_tp_size": 1}
        second = await self.post(decode, path, {**body, "kv_transfer_params": handed_over})
        return first, second

    async def prefill(
        self, engine: Engine, api: str, body: dict[str, Any], rank: int | None = None, **kv: Any
    ) -> Text:
        """The prefill leg as a right proxy sends it; `kv` overrides keys, `...` drops one."""
        leg = {**body, "max_tokens": 1, "stream": False}
        if api in ("completions", "chat"):
            leg |= {"min_tokens": 1, "ignore_eos": True}
        leg.pop("stream_options", None)
        if api == "responses":
            leg["max_output_tokens"] = 1
        params = {
            "do_remote_decode": True,
            "do_remote_prefill": False,
            "transfer_id": f"tx-{uuid.uuid4().hex}",
            "remote_engine_id": None,
            "remote_block_ids": None,
        }
        request_id = kv.pop("request_id", None)
        leg["kv_transfer_params"] = _merge(params, kv)
        return await self.ask(engine, api, leg, rank, request_id)

    def nixl_pair(self, **options: Any) -> tuple[Engine, Engine]:
        return self.pair("READ", connector="nixl", **options)

    async def nixl_prefill(
        self, engine: Engine, api: str, body: dict[str, Any], rank: int | None = None, **kv: Any
    ) -> Text:
        """NIXL's prefill leg as a right proxy sends it; `kv` overrides keys, `...` drops one."""
        leg = {**body, "max_tokens": 1, "stream": False}
        if api == "responses":
            leg["max_output_tokens"] = 1
        leg["kv_transfer_params"] = _merge(NIXL_PREFILL_PARAMS, kv)
        return await self.ask(engine, api, leg, rank)

    async def decode(
        self, engine: Engine, api: str, body: dict[str, Any], rank: int | None = None, **kv: Any
    ) -> Text:
        """The decode leg with these KV parameters; `...` as a value drops a key."""
        request_id = kv.pop("request_id", None)
        leg = {**body, "kv_transfer_params": _merge({}, kv)}
        return await self.ask(engine, api, leg, rank, request_id)

    def write_legs(
        self,
        prefill: Engine,
        decode: Engine,
        api: str,
        body: dict[str, Any],
        prefill_rank: int = 0,
        decode_rank: int | None = None,
        prefill_kv: dict[str, Any] | None = None,
        decode_kv: dict[str, Any] | None = None,
    ) -> tuple[Awaitable[Text], Awaitable[Text]]:
        """Both WRITE legs as a right proxy sends them, not yet started."""
        transfer_id = f"tx-{uuid.uuid4().hex}"
        one = {"transfer_id": transfer_id, **decode.peer_keys(), **(prefill_kv or {})}
        two = {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_engine_id": None,
            "remote_block_ids": None,
            "transfer_id": transfer_id,
            "remote_dp_rank": prefill_rank,
            "is_request_leader": True,
            **prefill.peer_keys(),
            **(decode_kv or {}),
        }
        pinned = prefill_rank if prefill.options.dp_size > 1 else None
        return (
            self.prefill(prefill, api, body, pinned, **one),
            self.decode(decode, api, body, decode_rank, **two),
        )


def _merge(params: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in {**params, **changes}.items() if value is not ...}


def _whole(status: int, body: dict[str, Any]) -> Text:
    if status != 200:
        return Text(status, json=body)
    if "choices" in body:
        choice = body["choices"][0]
        text = choice["text"] if "text" in choice else choice["message"]["content"]
    else:
        content = body["content"] if "content" in body else body["output"][0]["content"]
        text = content[0]["text"] if content else ""
    return Text(status, text, json=body, is_done=True)


def _events(status: int, raw: str) -> Reply:
    reply = Reply(status)
    for block in raw.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines())
        if lines.get("data") == "[DONE]":
            reply.is_done = True
        elif lines:
            assert not reply.is_done
            reply.events.append((lines.get("event", ""), json.loads(lines["data"])))
    return reply


def _streamed(status: int, raw: str) -> Text:
    data = [part.removeprefix("data: ") for part in raw.split("\n\n") if part]
    is_done = data[-1] == "[DONE]"
    events = [json.loads(one) for one in data if one != "[DONE]"]
    choices = [choice for event in events for choice in event.get("choices", ())]
    pieces = [c["text"] if "text" in c else c["delta"].get("content", "") for c in choices]
    return Text(status, "".join(pieces), events, is_done=is_done)


@pytest_asyncio.fixture
async def lab() -> AsyncIterator[Lab]:
    timeout = aiohttp.ClientTimeout(total=30)
    async with aiohttp.ClientSession(timeout=timeout) as http:
        made = Lab(http)
        try:
            yield made
        finally:
            statuses = [engine.end() for engine in made.engines]
    complaints = [engine.complaints() for engine in made.engines]
    assert not any(statuses), statuses
    assert not any(complaints), complaints


@pytest.fixture
def body_of() -> Callable[..., dict[str, Any]]:
    """Makes a request body of an API around a prompt."""

    def make(api: str, prompt: str, **more: Any) -> dict[str, Any]:
        if api == "completions":
            return {"model": "sim-model", "prompt": prompt, **more}
        messages = [{"role": "user", "content": prompt}]
        return {"model": "sim-model", "messages": messages, **more}

    return make
