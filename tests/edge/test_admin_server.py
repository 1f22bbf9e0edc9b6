"""The observation and admin servers over HTTP."""

import json
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web
from prometheus_client import CollectorRegistry, Counter

from sidecar.config import Config
from sidecar.edge.admin_server import AdminServer, Readings
from sidecar.errors import StartError
from sidecar.routing.instance_reply import InstanceReply


def free_listen() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


class Admin:
    """A server with readings that a test may change."""

    def __init__(self) -> None:
        self.reason = ""
        self.drains = 0
        self.told: list[tuple[str, bytes]] = []
        self.said: list[InstanceReply] = []
        self.registry = CollectorRegistry()
        self.observe, self.admin, self.envoy = free_listen(), free_listen(), free_listen()
        self.server = AdminServer(
            Readings(
                registry=self.registry,
                not_ready=lambda: self.reason,
                instances=lambda: [{"name": "p0"}],
                exchanges=lambda: [{"exchange": "e"}],
                status=lambda: {"version": "1"},
                config=Config,
                drain=self._drain,
                tell_all=self._tell_all,
                shows_addresses=False,
                envoy_admin=self.envoy,
            )
        )
        self.session: aiohttp.ClientSession

    def _drain(self) -> None:
        self.drains += 1

    async def _tell_all(
        self, path: str, body: bytes, _headers: Mapping[str, str]
    ) -> list[InstanceReply]:
        self.told.append((path, body))
        return self.said

    async def get(self, path: str, *, on: str = "observe") -> tuple[int, str]:
        listen = self.observe if on == "observe" else self.admin
        async with self.session.get(f"http://{listen}{path}") as answer:
            return answer.status, await answer.text()

    async def post(self, path: str, *, on: str = "admin") -> int:
        listen = self.observe if on == "observe" else self.admin
        async with self.session.post(f"http://{listen}{path}") as answer:
            return answer.status


@pytest_asyncio.fixture
async def admin() -> AsyncIterator[Admin]:
    made = Admin()
    await made.server.listen(observe=made.observe, admin=made.admin)
    async with aiohttp.ClientSession() as session:
        made.session = session
        yield made
    await made.server.close()


@pytest_asyncio.fixture
async def envoy_admin() -> AsyncIterator[Callable[..., object]]:
    """Serves as Envoy's admin at an address."""
    runners: list[web.AppRunner] = []

    async def serve(listen: str, status: int = 200) -> list[str]:
        asked: list[str] = []

        async def handle(request: web.Request) -> web.Response:
            asked.append(f"{request.method} {request.path_qs}")
            return web.Response(status=status, text="envoy_x 1\n")

        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handle)
        runner = web.AppRunner(app)
        await runner.setup()
        runners.append(runner)
        host, _, port = listen.rpartition(":")
        await web.TCPSite(runner, host, int(port)).start()
        return asked

    yield serve
    for runner in runners:
        await runner.cleanup()


@pytest.mark.asyncio
async def test_metrics_are_the_registrys(admin: Admin) -> None:
    """In Prometheus' text format."""
    Counter("pd_sidecar_x", "X.", registry=admin.registry).inc()
    status, text = await admin.get("/metrics")
    assert status == 200
    assert "pd_sidecar_x_total 1.0" in text


@pytest.mark.asyncio
async def test_ready_and_alive_are_two_questions(admin: Admin) -> None:
    """Not ready says why, with 503; alive is alive."""
    assert await admin.get("/readyz") == (200, "ready\n")
    admin.reason = "draining"
    assert await admin.get("/readyz") == (503, "draining\n")
    assert await admin.get("/healthz") == (200, "ok\n")


@pytest.mark.asyncio
async def test_the_observation_port_only_shows(admin: Admin) -> None:
    """It may be open to the network: no reading of requests, no drain, no other method."""
    for path in ("/instances", "/exchanges", "/config", "/status", "/drain"):
        assert (await admin.get(path))[0] == 404
    assert await admin.post("/drain", on="observe") == 404
    assert await admin.post("/metrics", on="observe") == 405
    assert admin.drains == 0


@pytest.mark.asyncio
async def test_admin_readings_are_json(admin: Admin) -> None:
    """Each what it was handed, configuration whole."""
    assert '"name": "p0"' in (await admin.get("/instances", on="admin"))[1]
    assert '"exchange": "e"' in (await admin.get("/exchanges", on="admin"))[1]
    assert '"version": "1"' in (await admin.get("/status", on="admin"))[1]
    assert '"max_body_bytes": 67108864' in (await admin.get("/config", on="admin"))[1]


@pytest.mark.asyncio
async def test_drain_is_a_post(admin: Admin) -> None:
    """A GET, as a browser or a crawler sends it, drains nothing."""
    assert (await admin.get("/drain", on="admin"))[0] == 405
    assert admin.drains == 0
    assert await admin.post("/drain") == 200
    assert admin.drains == 1


@pytest.mark.asyncio
async def test_envoys_metrics_pass_through(
    admin: Admin, envoy_admin: Callable[..., object]
) -> None:
    """One scrape target for both; 502 with the address while Envoy does not answer."""
    status, text = await admin.get("/envoy/metrics")
    assert status == 502
    assert admin.envoy in text
    await envoy_admin(admin.envoy)
    assert await admin.get("/envoy/metrics") == (200, "envoy_x 1\n")


@pytest.mark.asyncio
async def test_drain_envoy_says_whether_it_answered(
    admin: Admin, envoy_admin: Callable[..., object]
) -> None:
    """Graceful, and the listeners stay for the requests that come meanwhile."""
    assert not await admin.server.drain_envoy()
    asked = await envoy_admin(admin.envoy)
    assert await admin.server.drain_envoy()
    assert asked == ["POST /drain_listeners?graceful&skip_exit"]


@pytest.mark.asyncio
async def test_a_port_in_use_is_a_start_error_with_its_key(admin: Admin) -> None:
    """And what was bound before is given back."""
    other = Admin()
    with pytest.raises(StartError, match=r"^admin\.listen: cannot listen on"):
        await other.server.listen(observe=other.observe, admin=admin.admin)
    await other.server.close()
    again = Admin()
    await again.server.listen(observe=other.observe, admin=again.admin)
    await again.server.close()


def said(name: str, status: int) -> InstanceReply:
    return InstanceReply(instance=name, address="a:1", role="prefill", status=status, body="b")


@pytest.mark.asyncio
@pytest.mark.parametrize("path", ["/start_profile", "/stop_profile"])
async def test_a_profile_is_for_all_instances_and_each_reply_is_shown(
    admin: Admin, path: str
) -> None:
    """200 if all did it; 502 that names who did not, or that there is nobody."""
    url = f"http://{admin.admin}{path}"

    async def ask() -> tuple[int, dict[str, Any]]:
        async with admin.session.post(url, data=b"{}") as answer:
            return answer.status, json.loads(await answer.text())

    status, body = await ask()
    assert (status, body["instances"]) == (502, [])
    assert body["error"]["message"] == "There is no instance."
    admin.said = [said("p0", 200)]
    p0 = {"instance": "p0", "role": "prefill", "status": 200, "body": "b"}
    assert await ask() == (200, {"instances": [p0]})
    admin.said.append(said("d1", 404))
    status, body = await ask()
    assert (status, body["error"]["code"]) == (502, "profile_failed")
    assert body["error"]["message"] == "Not done by d1."
    assert [one["instance"] for one in body["instances"]] == ["p0", "d1"]
    assert admin.told == [(path, b"{}")] * 3
    assert (await admin.get(path, on="admin"))[0] == 405


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost:9900"}, 200),
        ({"Host": "[::1]:9900"}, 200),
        ({"Host": "evil.example"}, 403),
        ({"Host": "evil.example:9900"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
    ],
)
async def test_a_web_page_can_neither_drain_nor_read(
    admin: Admin, headers: dict[str, str], status: int
) -> None:
    """A browser sends a page's plain POST to any port, and a page's own name may lead here."""
    async with admin.session.post(f"http://{admin.admin}/drain", headers=headers) as answer:
        assert answer.status == status
    assert admin.drains == (status == 200)
    async with admin.session.get(f"http://{admin.admin}/config", headers=headers) as answer:
        assert answer.status == status
