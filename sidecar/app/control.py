"""The control process: registry, prober, ADS, ALS, admin, and the only metrics registry."""

import asyncio
import logging
import signal
from collections.abc import Mapping
from time import monotonic, time

import grpc.aio
from prometheus_client import CollectorRegistry

from sidecar import __version__
from sidecar.app import evidence, registry_file, settings
from sidecar.app.accounting import Accounting
from sidecar.app.files import envoy_yaml
from sidecar.app.orphans import Orphans
from sidecar.app.pool_keeper import Outlets, PoolKeeper
from sidecar.app.pool_warnings import pool_warnings
from sidecar.config import Config
from sidecar.edge.access_log_server import AccessLogServer
from sidecar.edge.admin_server import AdminServer, Readings
from sidecar.edge.discovery_server import DiscoveryServer
from sidecar.edge.fan_out import FanOut
from sidecar.edge.heartbeat_listener import HeartbeatListener
from sidecar.edge.kv_notifier import KvNotifier
from sidecar.edge.lifeline import Lifeline
from sidecar.edge.prober import Prober
from sidecar.edge.run_dir import RunDir
from sidecar.edge.worker_link import LinkServer
from sidecar.errors import StartError
from sidecar.exchange.ledger import Ledger
from sidecar.exchange.records import FromWorker, Hello
from sidecar.routing.instance import Connector
from sidecar.routing.instance_reply import InstanceReply
from sidecar.routing.registry import Registry
from sidecar.telemetry.metrics import Metrics
from sidecar.wire.access_log import Attempt, Entry
from sidecar.xds.resources import Templates, build_snapshot, with_endpoints
from sidecar.xds.templates import Template

log = logging.getLogger(__name__)

SWEEP_S = 0.25
PAUSE_S = 2.0
"""a sweep that comes so late says that the process stood still"""
SAVE_S = 1.0
DRAIN_POLL_S = 0.1
QUIET_POLLS = 5
"""in a row without an open exchange: records and log entries are up to 0.25 s on their way"""


class Control:
    """All parts of the control process, wired."""

    def __init__(self, config: Config, run_dir: RunDir) -> None:
        self._config = config
        self._run_dir = run_dir
        self._registry_metrics = CollectorRegistry()
        self.metrics = Metrics(self._registry_metrics, __version__)
        ledger = Ledger(config.tuning.access_log.report_interval_s)
        self.accounting = Accounting(ledger, self.metrics, config.prefill.timeout_s)
        static = settings.static_instances(config)
        registry = Registry(
            config.registration.ttl_s,
            linger_s=config.drain.timeout_s,
            ejection_rule=settings.ejection_rule(config),
        )
        models = {i.address: e.models for i, e in zip(static, config.instances, strict=True)}
        self._connector = Connector(config.connector)
        self.keeper = PoolKeeper(registry, self.accounting, self.metrics, models, self._connector)
        self.accounting.on_evidence = self.keeper.judged
        self._notifier = KvNotifier() if config.engine.release_kv else None
        self._orphans = Orphans(
            lambda slot, is_freed: self.accounting.freed(slot, is_freed=is_freed),
            self._notifier,
            self.keeper.find,
            config.engine.defer_timeout_s,
        )
        self.accounting.on_closed = lambda closed: self._orphans.closed(closed, monotonic())
        self.accounting.knows = lambda address: self.keeper.find(address) is not None
        for warning in pool_warnings(config):
            log.warning("%s", warning)
        self._load(registry)
        for instance in static:
            registry.add_static(instance, monotonic())
        self.discovery = DiscoveryServer(
            on_change=self.keeper.refresh_soon, on_envoy_gone=self._envoy_gone
        )
        self._link = LinkServer(on_message=self._from_worker, on_lost=self._worker_lost)
        self._listener = HeartbeatListener(
            config.registration.listen,
            self.keeper.heard,
            self.keeper.rejected,
            config.registration.allow,
        )
        self._grpc = grpc.aio.server(
            options=[("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", -1)]
        )
        self.stop = asyncio.Event()
        self._is_drain_asked = asyncio.Event()
        self._is_end_asked = asyncio.Event()
        self._fan_out: FanOut | None = None
        self._admin = AdminServer(self._readings())
        self._live_metrics()

    # --- life

    async def run(self) -> None:
        """Serve until `stop` (at once), or until a drain is over. Raises StartError."""
        probe = self._config.probe
        prober = Prober(
            probe.interval_s,
            probe.timeout_s,
            on_probe=self.keeper.probed,
            on_described=self.keeper.described,
            on_resolved=self.keeper.resolved,
            api_key=settings.api_key(self._config),
        )
        try:
            await self._start(prober)
            await self._until_over()
        finally:
            # All of them also where a start that failed never came to them.
            self.discovery.close()
            await self._listener.close()
            await prober.close()
            await self._link.close()
            await self._admin.close()
            if self._fan_out is not None:
                await self._fan_out.close()
            await self._grpc.stop(0.2)
            await self._orphans.close()
            if self._notifier is not None:
                self._notifier.close()

    async def _start(self, prober: Prober) -> None:
        """Take the ports first, then serve; engines are heard last, when all else is there."""
        self._listener.bind()
        self._fan_out = FanOut(
            settings.api_key(self._config), self._config.tuning.upstream.connect_timeout_s
        )
        await self._admin.listen(
            observe=self._config.observe.listen, admin=self._config.admin.listen
        )
        snapshot = build_snapshot(
            _templates(), settings.edge_settings(self._config, self._run_dir), ()
        )
        outlets = Outlets(
            endpoints=lambda e: self.discovery.publish(with_endpoints(snapshot, e)),
            probes=prober.watch,
            view=self._link.publish,
            acked=self.discovery.acked_endpoints,
            later=asyncio.get_running_loop().call_later,
        )
        self.keeper.connect(outlets)
        await self._link.listen(self._run_dir.link_socket)
        await self._serve_envoy()
        self._listener.start()

    async def _until_over(self) -> None:
        tasks = [asyncio.create_task(t) for t in (self._sweep(), self._save(), self._drain())]
        stopped = asyncio.create_task(self.stop.wait())
        try:
            done, _ = await asyncio.wait([*tasks, stopped], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (*tasks, stopped):
                task.cancel()
            await asyncio.gather(*tasks, stopped, return_exceptions=True)

    async def _serve_envoy(self) -> None:
        """ADS and ALS on one unix socket. Raises StartError."""
        path = self._run_dir.control_socket
        self.discovery.register(self._grpc)
        AccessLogServer(self._entry).register(self._grpc)
        try:
            path.unlink(missing_ok=True)
            self._grpc.add_insecure_port(f"unix:{path}")
        except (OSError, RuntimeError) as error:  # grpc's own is a bare RuntimeError
            raise StartError(f"cannot listen on {path}: {error}") from None
        await self._grpc.start()

    async def _sweep(self) -> None:
        """Close what nobody names any more. Not after we stood still (a paused container, Ctrl-Z):
        what came meanwhile is read first, and who was stopped with us is heard again."""
        last = monotonic()
        trusts_from = last
        while True:
            await asyncio.sleep(SWEEP_S)
            now = monotonic()
            if now - last > PAUSE_S:
                log.warning("stood still for %.1f s", now - last)
                self.keeper.stood_still(now)
                trusts_from = now + self._config.tuning.access_log.report_interval_s
            last = now
            if now < trusts_from:
                self.keeper.refresh()
                continue
            self.keeper.sweep(now)
            self.accounting.sweep(now)

    # --- drain (design §7 Stop)

    def drain(self) -> None:
        """Refuse from now on; once drained, wait for `end` (a pod's preStop comes before it)."""
        self._is_drain_asked.set()

    def end(self) -> None:
        """Drain, then end."""
        self._is_end_asked.set()
        self._is_drain_asked.set()

    async def _drain(self) -> None:
        """Returns when it is time to end."""
        await self._is_drain_asked.wait()
        await self._drain_in_flight()
        await self._is_end_asked.wait()

    async def _drain_in_flight(self) -> None:
        drain = self._config.drain
        log.info("draining: %d exchanges in flight", len(self.accounting.ledger))
        await asyncio.sleep(drain.notice_s)
        self.keeper.drain()
        if not await self._admin.drain_envoy():
            log.warning("Envoy's admin did not answer; its listeners are not drained")
        deadline = monotonic() + drain.timeout_s
        quiet = 0
        while quiet < QUIET_POLLS:
            await asyncio.sleep(DRAIN_POLL_S)
            quiet = 0 if len(self.accounting.ledger) else quiet + 1
            if monotonic() > deadline:
                left = len(self.accounting.ledger)
                log.warning("drain.timeout_s is over with %d exchanges in flight", left)
                return
        log.info("drained")

    def _not_ready(self) -> str:
        if self._is_drain_asked.is_set():
            return "draining"
        if not self.discovery.connected():
            return "no Envoy is connected"
        if not self._link.workers:
            return "no worker is connected"
        return self.keeper.not_ready()

    # --- events

    def _from_worker(self, worker: int, message: FromWorker) -> None:
        now = monotonic()
        if isinstance(message, Hello):
            log.info("worker %d is connected (pid %d)", worker, message.pid)
            self.accounting.ledger.greet(message, now)
        else:
            self.accounting.batch(message, now)

    def _worker_lost(self, worker: int) -> None:
        log.warning("worker %d is gone", worker)
        self.accounting.ledger.worker_lost(worker, monotonic())

    def _entry(self, entry: Entry | Attempt) -> None:
        now = monotonic()
        told = evidence.of_log(entry, now)
        if told is not None:
            self.keeper.judged(told)
        if isinstance(entry, Entry):
            self.accounting.entry(entry, now)

    def _envoy_gone(self, node_id: str, now: float) -> None:
        lost = self.accounting.envoy_gone(now)
        log.warning("Envoy %s is gone: %d exchanges closed as lost", node_id, lost)

    # --- readings

    def _readings(self) -> Readings:
        return Readings(
            registry=self._registry_metrics,
            not_ready=self._not_ready,
            instances=self.keeper.instances,
            exchanges=lambda: self.accounting.exchanges(monotonic()),
            status=self._status,
            config=lambda: self._config,
            drain=self.drain,
            tell_all=self._tell_all,
            shows_addresses=self._config.telemetry.show_addresses,
            envoy_admin=self._config.envoy.admin_listen,
        )

    async def _tell_all(
        self, path: str, body: bytes, headers: Mapping[str, str]
    ) -> list[InstanceReply]:
        assert self._fan_out is not None, "made before the admin server listens"
        instances = [(m.name, m.instance) for m in self.keeper.present()]
        return await self._fan_out.post(path, instances, body, headers)

    def _status(self) -> dict[str, object]:
        """The whole for `pd-sidecar status`, in one answer so that its parts agree."""
        return {
            "version": __version__,
            "not_ready": self._not_ready(),
            "workers": self._link.workers,
            "envoys": self.discovery.envoys(),
            "in_flight": len(self.accounting.ledger),
            "outcomes": dict(self.accounting.outcomes),
            "instances": self.keeper.instances(),
        }

    def _live_metrics(self) -> None:
        add = self.metrics.live.add
        slot = ("role", "instance", "dp_rank")
        add("pd_sidecar_instances", "Known instances.", ("role", "state"), self.keeper.count_states)
        add(
            "pd_sidecar_heartbeat_age_seconds",
            "Since the last heartbeat.",
            ("role", "instance"),
            self.keeper.heartbeat_ages,
        )
        add("pd_sidecar_in_flight_requests", "Held slots.", slot, self.keeper.in_flight)
        add(
            "pd_sidecar_in_flight_prompt_bytes",
            "Request bodies of what holds the slot.",
            slot,
            self.keeper.in_flight_prompt_bytes,
        )
        add(
            "pd_sidecar_xds_connected_envoys",
            "Envoys with an ADS stream.",
            (),
            lambda: [((), self.discovery.connected())],
        )
        add("pd_sidecar_workers", "Connected workers.", (), lambda: [((), self._link.workers)])
        count = self.metrics.live.add_counter
        count(
            "pd_sidecar_xds_snapshots_total",
            "Configurations published.",
            (),
            lambda: [((), self.discovery.snapshots_total)],
        )
        count(
            "pd_sidecar_xds_nacks_total",
            "Configurations that Envoy refused.",
            ("type",),
            lambda: [((kind,), n) for kind, n in self.discovery.nacks_total.items()],
        )

    # --- the registry file

    def _load(self, registry: Registry) -> None:
        path = self._run_dir.registry
        saved = registry_file.load(path, self._connector)
        if saved is None:
            return
        changes = registry.from_file(saved, monotonic(), time())
        log.info("%d instances remembered from %s", len(changes), path)

    async def _save(self) -> None:
        """At most one write a second; also without a change, because heartbeats move its times."""
        path, was = self._run_dir.registry, ""
        while True:
            await asyncio.sleep(SAVE_S)
            fault = ""
            try:
                registry_file.save(path, self.keeper.registry.to_file(monotonic(), time()))
            except OSError as error:
                fault = str(error.strerror)
            if fault != was:  # said once: a full disk is not helped by a line a second
                log.warning("%s %s", path, f"cannot be written: {fault}" if fault else "is written")
            was = fault


def _templates() -> Templates:
    def parse(name: str) -> Template:
        return Template.parse(name, envoy_yaml(name))

    return Templates(
        listener=parse("listener.yaml"),
        routes=parse("routes.yaml"),
        clusters=parse("clusters.yaml"),
    )


async def run_control(config: Config, run_dir: RunDir, lifeline_fd: int) -> None:
    """SIGTERM: drain, then end. End of the lifeline: end at once."""
    control = Control(config, run_dir)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, control.end)
    lifeline = Lifeline(lifeline_fd, control.stop.set)
    lifeline.start()
    try:
        await control.run()
    finally:
        lifeline.close()
