"""Probes of real servers: good, broken, slow and absent ones."""

import asyncio
import errno
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web
from polling import until

from sidecar.edge import prober as prober_module
from sidecar.edge.prober import DOUBTFUL_A_SECOND, Prober
from sidecar.routing.instance import Instance, Role, State, TransferMode, Version
from sidecar.routing.model_card import ModelCard
from sidecar.routing.probe import ProbeOutcome, ProbeTarget
from sidecar.routing.record import Change, ChangeKind
from sidecar.routing.registry import Registry
from sidecar.routing.view import Member
from tests.ports import free_port

INTERVAL_S = 0.03
TIMEOUT_S = 0.3


class Engine:
    """A server whose answers can be changed, and what it was asked."""

    def __init__(self) -> None:
        self.status = 200
        self.delay_s = 0.0
        self.version: Any = {"version": "0.33.0"}
        self.models: Any = {"data": [{"id": "m"}]}
        self.asked: list[str] = []
        self.peers: list[Any] = []
        self.keys: set[str | None] = set()
        self.at_once = 0
        self.most_at_once = 0
        self.port = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(request.path)
        self.keys.add(request.headers.get("Authorization"))
        assert request.transport is not None
        self.peers.append(request.transport.get_extra_info("peername"))
        if request.path == "/health":
            self.at_once += 1
            self.most_at_once = max(self.at_once, self.most_at_once)
            try:
                await asyncio.sleep(self.delay_s)
            finally:
                self.at_once -= 1
            return web.Response(status=self.status, headers={"Location": "/version"})
        body = self.version if request.path == "/version" else self.models
        return web.Response(status=404) if body is None else web.json_response(body)


@asynccontextmanager
async def served(engine: Engine, port: int = 0, host: str = "127.0.0.1") -> AsyncIterator[Engine]:
    app = web.Application()
    app.router.add_get("/{path:.*}", engine.answer)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, host, port)
    await site.start()
    engine.port = runner.addresses[0][1]
    try:
        yield engine
    finally:
        await runner.cleanup()


class Seen:
    """A prober and all that it reported, in order."""

    def __init__(self, **what: Any) -> None:
        self.events: list[tuple[str, str, int, Any]] = []
        self.prober = Prober(
            INTERVAL_S,
            TIMEOUT_S,
            on_probe=lambda a, g, outcome: self.events.append(("probe", a, g, outcome)),
            on_described=self._described,
            on_resolved=lambda a, g, endpoint: self.events.append(("resolved", a, g, endpoint)),
            **what,
        )

    def _described(
        self, address: str, generation: int, version: Version | None, cards: tuple[ModelCard, ...]
    ) -> None:
        self.cards = cards
        names = tuple(card.name for card in cards)
        self.events.append(("described", address, generation, (version, names)))

    def of(self, kind: str, address: str) -> list[Any]:
        return [event[3] for event in self.events if event[:2] == (kind, address)]

    def probes(self, address: str) -> list[ProbeOutcome]:
        return self.of("probe", address)


@pytest_asyncio.fixture
async def seen() -> AsyncIterator[Seen]:
    seen = Seen()
    yield seen
    await seen.prober.close()


@pytest_asyncio.fixture
async def engine() -> AsyncIterator[Engine]:
    async with served(Engine()) as engine:
        yield engine


def target(address: str, generation: int = 1) -> ProbeTarget:
    return ProbeTarget(address, f"http://{address}/v1", generation)


@pytest.mark.asyncio
async def test_resolved_then_described_then_ready(seen: Seen, engine: Engine) -> None:
    """The order lets control know what an instance is before anything is placed on it."""
    seen.prober.watch([target(engine.address, 7)])
    await until(lambda: len(seen.events) >= 5)
    assert seen.events[:4] == [
        ("resolved", engine.address, 7, engine.address),
        ("described", engine.address, 7, (Version(0, 33), ("m",))),
        ("probe", engine.address, 7, ProbeOutcome.OK),
        ("probe", engine.address, 7, ProbeOutcome.OK),
    ]
    assert engine.asked.count("/version") == engine.asked.count("/v1/models") == 1


@pytest.mark.asyncio
@pytest.mark.parametrize("status", [503, 500, 404, 401, 301, 204])
async def test_anything_but_200_is_a_bad_status(seen: Seen, engine: Engine, status: int) -> None:
    engine.status = status
    seen.prober.watch([target(engine.address)])
    await until(lambda: len(seen.probes(engine.address)) >= 2)
    assert set(seen.probes(engine.address)) == {ProbeOutcome.BAD_STATUS}
    assert set(engine.asked) == {"/health"}
    engine.status = 200
    await until(lambda: ProbeOutcome.OK in seen.probes(engine.address))


@pytest.mark.asyncio
async def test_no_listener_is_refused_and_a_later_one_found(seen: Seen) -> None:
    port = free_port()
    address = f"127.0.0.1:{port}"
    seen.prober.watch([target(address)])
    await until(lambda: len(seen.probes(address)) >= 2)
    assert set(seen.probes(address)) == {ProbeOutcome.REFUSED}
    async with served(Engine(), port):
        await until(lambda: seen.probes(address)[-1] is ProbeOutcome.OK)
    await until(lambda: seen.probes(address)[-1] is ProbeOutcome.REFUSED)


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("reply", "outcome"),
    [
        (b"", ProbeOutcome.NO_ANSWER),
        (b"not http at all\r\n\r\n", ProbeOutcome.BAD_STATUS),
        (None, ProbeOutcome.TIMEOUT),
    ],
)
async def test_a_server_that_speaks_no_http(
    seen: Seen, reply: bytes | None, outcome: ProbeOutcome
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        if reply is None:
            await reader.read()
        else:
            writer.write(reply)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    seen.prober.watch([target(address)])
    await until(lambda: len(seen.probes(address)) >= 2)
    assert set(seen.probes(address)) == {outcome}
    seen.prober.watch([])
    server.close()
    await server.wait_closed()


@pytest.mark.asyncio
async def test_no_route_is_no_answer_and_the_kernels_patience_a_timeout(
    seen: Seen, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither says that nobody listens, which is the proof that a process is gone."""
    nowhere = "255.255.255.255:80"
    seen.prober.watch([target(nowhere)])
    await until(lambda: bool(seen.probes(nowhere)))
    assert set(seen.probes(nowhere)) == {ProbeOutcome.NO_ANSWER}

    async def late(*_: object, **__: object) -> None:
        raise OSError(errno.ETIMEDOUT, "Connection timed out")

    monkeypatch.setattr(asyncio.get_running_loop(), "sock_connect", late)
    seen.prober.watch([target(engine.address)])
    await until(lambda: bool(seen.probes(engine.address)))
    assert set(seen.probes(engine.address)) == {ProbeOutcome.TIMEOUT}


@pytest.mark.asyncio
async def test_another_engine_at_the_address_is_asked_what_it_is(
    seen: Seen, engine: Engine
) -> None:
    """After any probe that was not good: a proxy may have answered while it restarted. What it does
    not say then stays as it was."""
    seen.prober.watch([target(engine.address)])
    await until(lambda: bool(seen.probes(engine.address)))
    engine.version, engine.models, engine.status = {"version": "0.32.0"}, None, 503
    await until(lambda: seen.probes(engine.address)[-1] is ProbeOutcome.BAD_STATUS)
    engine.status = 200
    await until(lambda: seen.probes(engine.address)[-1] is ProbeOutcome.OK)
    told = [event[3] for event in seen.events]
    again = told.index(ProbeOutcome.OK, told.index(ProbeOutcome.BAD_STATUS))
    assert told[again - 1] == (Version(0, 32), ("m",))
    engine.version, engine.models, engine.status = None, {"data": [{"id": "n"}]}, 503
    await until(lambda: seen.probes(engine.address)[-1] is ProbeOutcome.BAD_STATUS)
    engine.status = 200
    await until(lambda: seen.probes(engine.address)[-1] is ProbeOutcome.OK)
    assert seen.of("described", engine.address)[-1] == (Version(0, 32), ("n",))


class Control:
    """A prober and a registry, wired as in the control process: what changes is watched at once."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.registry = Registry(3600.0)
        self.changes: list[Change] = []
        self.probes = 0
        self.prober = Prober(
            INTERVAL_S,
            TIMEOUT_S,
            on_probe=self._probed,
            on_described=lambda *said: self._take(self.registry.describe(*said)),
            on_resolved=lambda *said: self._take(self.registry.resolved(*said)),
        )
        self._take(
            self.registry.hear(
                Instance(address=address, role=Role.DECODE, transfer_mode=TransferMode.WRITE), 0.0
            )
        )

    def _probed(self, address: str, generation: int, outcome: ProbeOutcome) -> None:
        self.probes += 1
        self._take(self.registry.probe_result(address, generation, outcome, 0.0))

    def _take(self, change: Change | None) -> None:
        if change is not None:
            self.changes.append(change)
            self.prober.watch(self.registry.probe_targets())

    @property
    def member(self) -> Member:
        (member,) = self.registry.members(None)
        return member

    @property
    def is_ready(self) -> bool:
        return self.member.state is State.READY


@pytest.mark.asyncio
@pytest.mark.parametrize("said", [{"version": "0.32.0"}, None])
async def test_an_engine_that_was_rolled_back_is_known_as_what_it_is(said: Any) -> None:
    """Gone, and back at its address as another version, or as one that does not say: described
    before it is ready, and never of the version of its first life, whose notices would end it."""
    async with served(Engine()) as first:
        control = Control(first.address)
        await until(lambda: control.is_ready)
        assert control.member.version == Version(0, 33)
    await until(lambda: not control.is_ready)
    assert (control.member.version, control.member.models) == (None, ("m",))
    second = Engine()
    second.version = second.models = said
    begun = len(control.changes)
    async with served(second, first.port):
        await until(lambda: control.is_ready)
        member = control.member
        assert (member.version, member.models) == (Version(0, 32) if said else None, ())
        kinds = [change.kind for change in control.changes[begun:]]
        assert kinds == [ChangeKind.DESCRIBED, ChangeKind.READY]
        await control.prober.close()


@pytest.mark.asyncio
async def test_an_engine_that_refuses_is_probed_at_its_pace() -> None:
    """It is watched anew once, when it went; then no faster than before, and nothing is said."""
    async with served(Engine()) as engine:
        control = Control(engine.address)
        await until(lambda: control.is_ready)
    await until(lambda: not control.is_ready)
    said, life = len(control.changes), control.registry.probe_targets()
    before, began = control.probes, asyncio.get_running_loop().time()
    await until(lambda: control.probes >= before + 10)
    assert asyncio.get_running_loop().time() - began >= 8 * INTERVAL_S
    assert (len(control.changes), control.registry.probe_targets()) == (said, life)
    await control.prober.close()


@pytest.mark.asyncio
async def test_a_slow_instance_delays_no_other_and_is_never_probed_twice_at_once(
    seen: Seen, engine: Engine
) -> None:
    async with served(Engine()) as slow:
        slow.delay_s = 60.0
        seen.prober.watch([target(slow.address), target(engine.address)])
        await until(lambda: len(seen.probes(slow.address)) >= 2)
        assert set(seen.probes(slow.address)) == {ProbeOutcome.TIMEOUT}
        assert slow.most_at_once == 1
        assert len(seen.probes(engine.address)) > 2 * len(seen.probes(slow.address))
        seen.prober.watch([])


@pytest.mark.asyncio
async def test_every_probe_connects_anew(seen: Seen, engine: Engine) -> None:
    seen.prober.watch([target(engine.address)])
    await until(lambda: len(seen.probes(engine.address)) >= 5)
    assert len(set(engine.peers)) == len(engine.peers)


@pytest.mark.asyncio
async def test_a_new_generation_is_probed_at_once_and_described_again(engine: Engine) -> None:
    seen = Seen()
    seen.prober.interval_s = 60.0
    seen.prober.watch([target(engine.address, 1)])
    await until(lambda: bool(seen.probes(engine.address)))
    seen.prober.watch([target(engine.address, 1)])
    engine.version = {"version": "0.20.1"}
    seen.prober.watch([target(engine.address, 2)])
    await until(lambda: len(seen.probes(engine.address)) == 2)
    assert [event[2] for event in seen.events if event[0] == "probe"] == [1, 2]
    assert seen.of("described", engine.address)[-1] == (Version(0, 20), ("m",))
    await seen.prober.close()
    await seen.prober.close()


@pytest.mark.asyncio
async def test_what_is_no_longer_watched_is_no_longer_asked(seen: Seen, engine: Engine) -> None:
    async with served(Engine()) as other:
        seen.prober.watch([target(engine.address), target(other.address)])
        await until(lambda: bool(seen.probes(engine.address) and seen.probes(other.address)))
        seen.prober.watch([target(other.address)])
        count = len(seen.probes(engine.address))
        more = len(seen.probes(other.address)) + 4
        await until(lambda: len(seen.probes(other.address)) >= more)
        assert len(seen.probes(engine.address)) == count
        seen.prober.watch([])


@pytest.mark.asyncio
async def test_what_is_unknown_is_asked_again_now_and_then(seen: Seen, engine: Engine) -> None:
    engine.version, engine.models = None, {"data": []}
    seen.prober.watch([target(engine.address)])
    await until(lambda: len(seen.probes(engine.address)) >= 7)
    assert seen.of("described", engine.address) == [(None, ())]
    assert 2 <= engine.asked.count("/version") <= 3
    engine.models = {"data": [{"id": "late"}]}
    await until(lambda: seen.of("described", engine.address)[1:] == [(None, ("late",))])
    engine.version = {"version": "0.32.1"}
    await until(lambda: len(seen.of("described", engine.address)) == 3)
    assert seen.of("described", engine.address)[2] == (Version(0, 32), ("late",))


@pytest.mark.asyncio
async def test_what_is_known_is_asked_again_now_and_then(seen: Seen, engine: Engine) -> None:
    """Adapters come and go while an engine runs. What it says is the same each time but for the
    moment that it says it, which is no change; and what it does not say stays."""
    engine.models = {"data": [{"id": "m", "created": 7}]}
    seen.prober.watch([target(engine.address)])
    await until(lambda: len(seen.of("described", engine.address)) == 1)
    engine.version, engine.models = None, {"data": [{"id": "m", "created": 8}]}
    asked = engine.asked.count("/v1/models")
    await until(lambda: engine.asked.count("/v1/models") > asked)
    more = len(seen.probes(engine.address)) + 2
    await until(lambda: len(seen.probes(engine.address)) >= more)
    assert len(seen.of("described", engine.address)) == 1
    engine.models = {"data": [{"id": "m", "created": 9}, {"id": "lora", "created": 9}]}
    await until(lambda: len(seen.of("described", engine.address)) == 2)
    assert seen.of("described", engine.address)[1] == (Version(0, 33), ("m", "lora"))
    assert [card.created for card in seen.cards] == [7, 9]


@pytest.mark.asyncio
@pytest.mark.parametrize("key", [None, "secret"])
async def test_the_key_is_sent_when_there_is_one(engine: Engine, key: str | None) -> None:
    seen = Seen(api_key=key)
    seen.prober.watch([target(engine.address)])
    await until(lambda: bool(seen.probes(engine.address)))
    assert engine.keys == {f"Bearer {key}" if key else None}
    await seen.prober.close()


def names(*answers: list[str] | Exception) -> Callable[[str, int], Awaitable[list[str]]]:
    """A resolver that gives these answers in turn, the last one for ever."""
    left = list(answers)

    async def resolve(_name: str, _port: int) -> list[str]:
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    return resolve


@pytest.mark.asyncio
async def test_a_name_is_resolved_and_probed_at_that_endpoint(engine: Engine) -> None:
    seen = Seen(resolve=names(["127.0.0.1", "127.0.0.2"]))
    name = f"engine-1.test:{engine.port}"
    seen.prober.watch([target(name)])
    await until(lambda: len(seen.probes(name)) >= 2)
    assert seen.of("resolved", name) == [engine.address]
    assert seen.probes(name)[0] is ProbeOutcome.OK
    await seen.prober.close()


@pytest.mark.asyncio
async def test_a_name_that_is_not_known_is_said_once_and_tried_again(engine: Engine) -> None:
    unknown = OSError(errno.ENOENT, "no such name")
    seen = Seen(resolve=names(unknown, unknown, unknown, ["127.0.0.1"]))
    name = f"engine-1.test:{engine.port}"
    seen.prober.watch([target(name)])
    await until(lambda: bool(seen.probes(name)))
    assert seen.of("resolved", name) == [None, engine.address]
    await seen.prober.close()


@pytest.mark.asyncio
async def test_a_name_that_moved_is_followed_after_a_bad_probe(engine: Engine) -> None:
    seen = Seen(resolve=names(["127.0.0.9"], ["127.0.0.1"]))
    name = f"engine-1.test:{engine.port}"
    seen.prober.watch([target(name)])
    await until(lambda: ProbeOutcome.OK in seen.probes(name))
    assert seen.probes(name)[0] is ProbeOutcome.REFUSED
    assert seen.of("resolved", name) == [f"127.0.0.9:{engine.port}", engine.address]
    await seen.prober.close()


@pytest.mark.asyncio
async def test_a_name_that_moved_leads_to_another_engine(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where both are well: it is asked what it is, and what it does not say is unknown."""
    monkeypatch.setattr(prober_module, "RESOLVE_EVERY_S", 0.0)
    places = [["127.0.0.1"]]

    async def resolve(_name: str, _port: int) -> list[str]:
        return places[-1]

    seen = Seen(resolve=resolve)
    name = f"engine-1.test:{engine.port}"
    seen.prober.watch([target(name)])
    await until(lambda: len(seen.probes(name)) >= 2)
    other = Engine()
    other.version = other.models = None
    async with served(other, engine.port, "127.0.0.2"):
        places.append(["127.0.0.2"])
        await until(lambda: len(seen.of("described", name)) == 2)
        await until(lambda: seen.events[-1][0] == "probe")
    told = [event[3] for event in seen.events]
    moved = told.index(f"127.0.0.2:{engine.port}")
    assert told[moved + 1 : moved + 3] == [(None, ()), ProbeOutcome.OK]
    await seen.prober.close()


@pytest.mark.asyncio
async def test_a_new_life_keeps_the_place_of_a_name_that_cannot_be_looked_up(
    engine: Engine,
) -> None:
    """The name server is away just when an engine restarts: it is found where it was."""
    seen = Seen(resolve=names(["127.0.0.1"], OSError(errno.EAGAIN, "no name server")))
    name = f"engine-1.test:{engine.port}"
    seen.prober.watch([target(name, 1)])
    await until(lambda: bool(seen.probes(name)))
    seen.prober.watch([target(name, 2)])
    await until(lambda: any(event[:3] == ("probe", name, 2) for event in seen.events))
    assert seen.of("resolved", name) == [engine.address]
    assert seen.probes(name)[-1] is ProbeOutcome.OK
    await seen.prober.close()


@pytest.mark.asyncio
async def test_a_name_server_that_never_answers_delays_no_other(engine: Engine) -> None:
    async def resolve(_name: str, _port: int) -> list[str]:
        await asyncio.sleep(3600)
        return []

    seen = Seen(resolve=resolve)
    seen.prober.watch([target("dead.test:80"), target(engine.address)])
    await until(lambda: seen.of("resolved", "dead.test:80") == [None])
    assert len(seen.probes(engine.address)) >= 2
    await seen.prober.close()


@pytest.mark.asyncio
async def test_an_answer_that_comes_after_the_asker_left_is_used(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a name whose look-ups wait behind those of dead ones might never be known."""
    real, asked = socket.getaddrinfo, []

    def slow(name: str, *rest: Any, **more: Any) -> Any:
        if name != "slow.test":
            return real(name, *rest, **more)
        asked.append(name)
        time.sleep(2.5 * TIMEOUT_S)
        return real("127.0.0.1", *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    seen = Seen()
    name = f"slow.test:{engine.port}"
    seen.prober.watch([target(name)])
    await until(lambda: seen.of("resolved", name) == [None, engine.address])
    assert len(asked) == 1
    await seen.prober.close()


@pytest.mark.asyncio
async def test_the_real_resolver_knows_localhost() -> None:
    async with served(Engine()) as engine:
        seen = Seen()
        name = f"localhost:{engine.port}"
        seen.prober.watch([target(name)])
        await until(lambda: bool(seen.of("resolved", name)))
        assert seen.of("resolved", name)[0] in {engine.address, f"[::1]:{engine.port}"}
        await seen.prober.close()


@pytest.mark.timed
@pytest.mark.asyncio
async def test_many_that_refuse_take_no_probe_from_a_good_one(engine: Engine) -> None:
    """They share a budget of probes; the good one keeps its pace."""
    count = 5 * DOUBTFUL_A_SECOND
    seen = Seen()
    seen.prober.watch([target(engine.address)])
    await until(lambda: bool(seen.probes(engine.address)))
    bad = [target(f"127.9.{i // 250}.{i % 250 + 1}:9") for i in range(count)]
    seen.prober.watch([target(engine.address), *bad])
    await until(lambda: len(seen.events) > 2 * count)  # each is resolved, and probed once
    before = len(seen.probes(engine.address))
    started = asyncio.get_running_loop().time()
    await until(lambda: len(seen.probes(engine.address)) >= before + 10)
    took_s = asyncio.get_running_loop().time() - started
    assert took_s < 40 * INTERVAL_S
    assert set(seen.probes(engine.address)) == {ProbeOutcome.OK}
    assert len(seen.events) < 3 * count
    await seen.prober.close()


@pytest.mark.asyncio
async def test_probes_in_flight_are_bounded() -> None:
    async with served(Engine()) as slow:
        slow.delay_s = 0.05
        seen = Seen(max_in_flight=3)
        targets = [target(f"127.0.0.{i}:{slow.port}") for i in range(1, 2)]
        targets += [ProbeTarget(f"n{i}", f"http://{slow.address}/v1", 1) for i in range(20)]
        seen.prober.watch(targets)
        await until(lambda: all(seen.probes(f"n{i}") for i in range(20)))
        assert slow.most_at_once == 3
        await seen.prober.close()


@pytest.mark.asyncio
async def test_want_of_descriptors_here_is_not_held_against_the_instance(
    seen: Seen, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, left = seen.prober.get, [3]

    async def get(url: Any, host: str) -> tuple[int, bytes]:
        if left[0] > 0:
            left[0] -= 1
            raise aiohttp.ClientOSError(errno.EMFILE, "too many open files")
        return await real(url, host)

    monkeypatch.setattr(seen.prober, "get", get)
    seen.prober.watch([target(engine.address)])
    await until(lambda: bool(seen.probes(engine.address)))
    assert seen.probes(engine.address)[0] is ProbeOutcome.OK
    assert left == [0]


@pytest.mark.asyncio
async def test_a_callback_that_fails_leaves_the_instance_watched(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    calls = []

    def on_probe(_address: str, _generation: int, outcome: ProbeOutcome) -> None:
        calls.append(outcome)
        raise RuntimeError("a bug")

    prober = Prober(
        INTERVAL_S,
        TIMEOUT_S,
        on_probe=on_probe,
        on_described=lambda *_: None,
        on_resolved=lambda *_: None,
    )
    prober.watch([target(engine.address)])
    await until(lambda: len(calls) >= 3)
    assert "a bug" in caplog.text
    await prober.close()


@pytest.mark.asyncio
async def test_a_body_without_end_is_cut(
    seen: Seen, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prober_module, "MAX_BODY_BYTES", 1000)
    engine.models = {"data": [{"id": "x" * 100} for _ in range(50_000)]}
    seen.prober.watch([target(engine.address)])
    await until(lambda: bool(seen.probes(engine.address)))
    assert seen.of("described", engine.address) == [(Version(0, 33), ())]
