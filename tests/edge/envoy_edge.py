"""A real Envoy with our configuration, between fakes: ext_proc server, access log server, engines.

Everything asynchronous runs in one thread of its own, so tests are plain functions with deadlines.
The ext_proc fake does what the request's `x-test-*` headers say.
"""

import asyncio
import contextlib
import itertools
import json
import shutil
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import grpc.aio
import msgspec
from aiohttp import web
from envoy.config.core.v3 import base_pb2
from envoy.data.accesslog.v3 import accesslog_pb2
from envoy.extensions.filters.http.ext_proc.v3 import processing_mode_pb2
from envoy.service.accesslog.v3 import als_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from google.protobuf import struct_pb2

from sidecar.edge.discovery_server import DiscoveryServer
from sidecar.edge.envoy_process import (
    EnvoyRecord,
    find_envoy,
    start_envoy,
    stop_envoy,
    wait_until_live,
)
from sidecar.xds.bootstrap import bootstrap_document
from sidecar.xds.resources import Templates, build_snapshot
from sidecar.xds.settings import EdgeSettings
from sidecar.xds.templates import Template
from tests.ports import free_port

FILES = Path(__file__).parents[2] / "envoy"
NODE = "pd-test"


def template(name: str) -> Template:
    return Template.parse(name, (FILES / name).read_text())


def templates() -> Templates:
    return Templates(
        listener=template("listener.yaml"),
        routes=template("routes.yaml"),
        clusters=template("clusters.yaml"),
    )


_bound = itertools.count()


async def serve_at(server: grpc.aio.Server, path: str) -> None:
    """Bind under another name and rename: gRPC unlinks the name it bound when a stopped server is
    freed, which may be after its successor was started at the same path."""
    name = f"{path}.{next(_bound)}"
    server.add_insecure_port(f"unix:{name}")
    await server.start()
    move(name, path)


def move(name: str, path: str) -> None:
    Path(name).replace(path)


def clear(path: str) -> None:
    Path(path).unlink()


def eventually(is_true: Callable[[], object], what: str, timeout_s: float = 10) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_true():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.02)


class Engine:
    """An HTTP server that remembers what reached it and answers as `x-test-engine` says."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.methods: list[str] = []
        self.open_streams = 0
        """requests that are not over yet"""
        self.goes_on = asyncio.Event()
        """what `slow` answers wait for"""
        self.address = ""

    async def start(self) -> None:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{path:.*}", self._counted)
        self._runner = web.AppRunner(
            app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.address = f"127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def _counted(self, request: web.Request) -> web.StreamResponse:
        self.open_streams += 1
        try:
            return await self._answer(request)
        finally:
            self.open_streams -= 1

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        headers = {k.lower(): v for k, v in request.headers.items()}
        self.requests.append((request.path, headers, body))
        self.methods.append(request.method)
        how = headers.get("x-test-engine", "")
        if how == "hang":
            await asyncio.sleep(30)
        if how == "stall":
            response = web.StreamResponse()
            await response.prepare(request)
            await response.write(b"first")
            await asyncio.sleep(30)
        if how == "slow":
            response = web.StreamResponse()
            await response.prepare(request)
            await response.write(b"first")
            await asyncio.wait_for(self.goes_on.wait(), 30)
            await response.write(b"last")
            return response
        if how == "chunks":
            response = web.StreamResponse()
            await response.prepare(request)
            for i in range(3):
                await response.write(b"%d" % i)
            return response
        if how == "flood":  # until nobody takes it
            response = web.StreamResponse()
            await response.prepare(request)
            with contextlib.suppress(ConnectionError):
                while True:
                    await response.write(b"x" * 16384)
            return response
        if how == "open":  # as every vLLM answers a web page
            return web.Response(headers={"access-control-allow-origin": "*", "vary": "accept"})
        if how == "teapot":
            return web.Response(status=413, text="engine's own")
        return web.json_response({"bytes": len(body)})


class Edge:
    """The running thing. `stop` ends every process and thread."""

    def __init__(self, **settings: Any) -> None:
        self.run_dir = Path(tempfile.mkdtemp(dir="/tmp", prefix="pd-"))
        self.settings = EdgeSettings(
            node_id=NODE,
            control_socket=str(self.run_dir / "control.sock"),
            worker_sockets=(str(self.run_dir / "w0.sock"), str(self.run_dir / "w1.sock")),
            listen_host="127.0.0.1",
            listen_port=free_port(),
            admin_port=free_port(),
            access_log_path=str(self.run_dir / "access.log"),
            **settings,
        )
        self.templates = templates()
        self.engine = Engine()
        self.entries: list[Any] = []
        self.seen: list[dict[str, str]] = []
        self.changes = 0
        self.gone: list[str] = []
        self.record: EnvoyRecord | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def start(self) -> None:
        self._thread.start()
        self.run(self._start_fakes())
        self.publish([self.engine.address])
        bootstrap = bootstrap_document(template("bootstrap.yaml"), self.settings)
        self.record = start_envoy(find_envoy(None), bootstrap, self.run_dir, 1)
        wait_until_live(self.record, 20)
        eventually(lambda: self.serves([self.engine.address]), "endpoints ACKed")
        self.wait_for_worker()

    def stop(self) -> None:
        if self.record is not None:
            stop_envoy(self.record, 5)
        self.run(self._stop_fakes())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        shutil.rmtree(self.run_dir)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    def publish(self, endpoints: list[str], **changes: Any) -> None:
        settings = msgspec.structs.replace(self.settings, **changes)
        snapshot = build_snapshot(self.templates, settings, endpoints)

        async def act() -> None:
            self.discovery.publish(snapshot)

        self.run(act())

    def serves(self, endpoints: list[str]) -> bool:
        async def ask() -> frozenset[str] | None:
            return self.discovery.acked_endpoints(time.monotonic())

        return self.run(ask()) == frozenset(endpoints)

    def let_go(self) -> None:
        """Slow answers go on."""
        self._loop.call_soon_threadsafe(self.engine.goes_on.set)

    def wait_for_worker(self) -> None:
        stats = lambda: self.stat("cluster.workers.membership_healthy")  # noqa: E731
        eventually(lambda: stats() == 1, "one healthy worker")

    def stat(self, name: str) -> int:
        body = self.admin(f"/stats?filter=^{name}$")
        return int(body.rpartition(":")[2]) if body.strip() else -1

    def admin(self, path: str) -> str:
        url = f"http://127.0.0.1:{self.settings.admin_port}{path}"
        with urllib.request.urlopen(url, timeout=5) as response:
            return str(response.read().decode())

    def end_of(self, exchange: str) -> Any:
        """The access log's end entry (common properties) of the exchange `x-test-ex` named."""

        def ends() -> list[Any]:
            found = [e.common_properties for e in self.entries]
            return [
                c
                for c in found
                if c.custom_tags.get("ex") == exchange
                and c.access_log_type == accesslog_pb2.DownstreamEnd
            ]

        eventually(ends, f"an end entry of {exchange}")
        return ends()[0]

    def log(self) -> str:
        return (self.run_dir / "envoy.log").read_text()

    async def start_worker(self) -> None:
        self.worker = grpc.aio.server(
            options=[("grpc.server.max_pending_requests", 100000),
                     ("grpc.server.max_pending_requests_hard_limit", 200000),
                     ("grpc.max_receive_message_length", -1),
                     ("grpc.max_send_message_length", -1)]
        )  # fmt: skip
        handler = grpc.stream_stream_rpc_method_handler(
            self._process,
            request_deserializer=pb.ProcessingRequest.FromString,
            response_serializer=pb.ProcessingResponse.SerializeToString,
        )
        self.worker.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(
                "envoy.service.ext_proc.v3.ExternalProcessor", {"Process": handler}),)
        )  # fmt: skip
        await serve_at(self.worker, self.settings.worker_sockets[0])

    async def stop_worker(self) -> None:
        await self.worker.stop(None)
        clear(self.settings.worker_sockets[0])

    async def start_control(self) -> None:
        self.control = grpc.aio.server()
        self.discovery.register(self.control)
        handler = grpc.stream_unary_rpc_method_handler(
            self._collect,
            request_deserializer=als_pb2.StreamAccessLogsMessage.FromString,
            response_serializer=als_pb2.StreamAccessLogsResponse.SerializeToString,
        )
        self.control.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(
                "envoy.service.accesslog.v3.AccessLogService", {"StreamAccessLogs": handler}),)
        )  # fmt: skip
        await serve_at(self.control, self.settings.control_socket)

    async def _start_fakes(self) -> None:
        self.discovery = DiscoveryServer(
            on_change=self._on_change, on_envoy_gone=lambda node, _: self.gone.append(node)
        )
        self.release = asyncio.Event()
        await self.engine.start()
        await self.start_control()
        await self.start_worker()

    def _on_change(self) -> None:
        self.changes += 1

    async def _stop_fakes(self) -> None:
        self.discovery.close()
        await self.stop_worker()
        await self.control.stop(None)
        await self.engine.stop()

    async def _collect(self, requests: Any, _context: Any) -> Any:
        async for message in requests:
            self.entries.extend(message.http_logs.log_entry)
        return als_pb2.StreamAccessLogsResponse()

    async def _process(self, requests: Any, context: Any) -> None:
        wanted: dict[str, str] = {}
        async for message in requests:
            if message.HasField("request_headers"):
                wanted = {
                    h.key: (h.raw_value or h.value.encode()).decode()
                    for h in message.request_headers.headers.headers
                }
                self.seen.append(wanted)
                if wanted.get("x-test-hold"):
                    await self.release.wait()
                await context.write(_headers_reply(wanted))
                if message.request_headers.end_of_stream or wanted.get("x-test-immediate"):
                    return
            elif message.HasField("request_body"):
                await context.write(_body_reply(wanted, message.request_body.body))
                if not wanted.get("x-test-watch"):
                    return
            elif message.HasField("response_headers"):
                await asyncio.sleep(float(wanted.get("x-test-hold-answer-s", "0")))
                await context.write(pb.ProcessingResponse(response_headers=pb.HeadersResponse()))
                return


def _set(**headers: str) -> pb.HeaderMutation:
    return pb.HeaderMutation(
        set_headers=[
            base_pb2.HeaderValueOption(
                header=base_pb2.HeaderValue(key=k.replace("_", "-"), raw_value=v.encode()),
                append_action=base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD,
            )
            for k, v in headers.items()
        ]
    )


def _metadata(**values: str) -> struct_pb2.Struct:
    metadata = struct_pb2.Struct()
    metadata.update({"pd": values})
    return metadata


def _destination(wanted: dict[str, str]) -> dict[str, str]:
    to = wanted.get("x-test-to")
    return {"x_gateway_destination_endpoint": to} if to else {}


def _headers_reply(wanted: dict[str, str]) -> pb.ProcessingResponse:
    exchange = wanted.get("x-test-ex", "e1")
    if wanted.get("x-test-immediate"):
        body = json.dumps({"mine": True, "z": 1, "a": 2})
        reply = pb.ImmediateResponse(
            headers=_set(content_type="application/json", x_pd_error="draining"),
            body=body.encode(),
        )
        reply.status.code = 503
        metadata = _metadata(ex=exchange, reply="draining")
        return pb.ProcessingResponse(immediate_response=reply, dynamic_metadata=metadata)
    reply = pb.HeadersResponse()
    reply.response.header_mutation.CopyFrom(_set(**_destination(wanted), x_request_id=exchange))
    if "x-test-method" in wanted:
        method = base_pb2.HeaderValue(key=":method", raw_value=wanted["x-test-method"].encode())
        reply.response.header_mutation.set_headers.add(
            header=method, append_action=base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
        )
    metadata = {"ex": exchange}
    if "x-request-id" in wanted:
        metadata["client_id"] = wanted["x-request-id"]
    if wanted.get("x-test-receipt"):
        metadata |= {"prefill": "p0#1", "decode": "d0#0"}
    response = pb.ProcessingResponse(request_headers=reply, dynamic_metadata=_metadata(**metadata))
    if wanted.get("x-test-watch"):
        mode = processing_mode_pb2.ProcessingMode
        response.mode_override.CopyFrom(
            mode(
                request_header_mode=mode.SEND,
                request_body_mode=mode.BUFFERED,
                request_trailer_mode=mode.SKIP,
                response_header_mode=mode.SEND,
                response_trailer_mode=mode.SKIP,
            )
        )
    return response


def _body_reply(wanted: dict[str, str], body: bytes) -> pb.ProcessingResponse:
    headers = _destination(wanted) | {"content_length": str(len(body))}
    if wanted.get("x-test-retry"):
        headers["x_envoy_retry_on"] = "connect-failure"
    reply = pb.BodyResponse()
    if wanted.get("x-test-stream"):
        headers["x_pd_answer"] = "stream"
        reply.response.clear_route_cache = True
    reply.response.header_mutation.CopyFrom(_set(**headers))
    reply.response.body_mutation.body = body
    return pb.ProcessingResponse(request_body=reply, dynamic_metadata=_metadata(rec="[1]"))
