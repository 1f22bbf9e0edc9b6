"""`up` and `serve`: the supervisor process. Imports neither grpc nor zmq."""

import asyncio
import contextlib
import http.client
import logging
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

import msgspec

from sidecar.app import settings
from sidecar.app.envoy_keeper import EnvoyKeeper
from sidecar.app.files import envoy_yaml
from sidecar.app.usable_cores import usable_cores
from sidecar.config import Config, StaticInstance
from sidecar.edge.envoy_process import find_envoy, living_envoy, stop_envoy
from sidecar.edge.run_dir import RunDir, check_ports, default_run_dir
from sidecar.edge.supervisor import ChildSpec, Supervisor
from sidecar.errors import StartError
from sidecar.sim.fleet import engine_command, parse_fleet
from sidecar.sim.listening import bind, port_of
from sidecar.sim.options import Address, SimOptions
from sidecar.xds.bootstrap import bootstrap_document
from sidecar.xds.templates import Template

log = logging.getLogger(__name__)

T = TypeVar("T")

START_TIMEOUT_S = 60.0
STOP_SLACK_S = 5.0
POLL_S = 0.05
GUARD_S = 1.0
SAVED_S = 1.5
"""control writes what the engines said once a second: its successor shall find it"""


def run_dir_of(config: Config) -> RunDir:
    return RunDir(Path(config.run_dir).absolute() if config.run_dir else default_run_dir())


def bootstrap_of(config: Config, run_dir: RunDir) -> dict[str, Any]:
    """Envoy's bootstrap for this configuration."""
    template = Template.parse("bootstrap.yaml", envoy_yaml("bootstrap.yaml"))
    return bootstrap_document(template, settings.edge_settings(config, run_dir))


class Up:
    """One run of `up` (with Envoy and perhaps simulated engines) or `serve` (the sidecar alone)."""

    def __init__(
        self,
        config: Config,
        *,
        has_envoy: bool,
        engines: Sequence[SimOptions] = (),
        on_ready: Callable[["Up"], None] = lambda _: None,
    ) -> None:
        config = self.config = naming(config, engines)
        self.run_dir = run_dir_of(config)
        self.engines = tuple(engines)
        self._on_ready = on_ready
        self._stop_asked = asyncio.Event()
        self._stop_now = asyncio.Event()
        # Faults of the configuration come before anything is touched.
        settings.static_instances(config)
        settings.limits(config)
        bootstrap = bootstrap_of(config, self.run_dir)
        self._envoy: EnvoyKeeper | None = None
        if has_envoy:
            binary = find_envoy(config.envoy.path)
            self._envoy = EnvoyKeeper(
                binary, bootstrap, self.run_dir.path, config.envoy.concurrency or usable_cores()
            )
        self._supervisor = Supervisor(self._children())

    async def run(self) -> int:
        """Until stopped; returns the exit code. Raises StartError."""
        self._take_signals()
        try:
            self.run_dir.hold()
            return await self._run_held()
        except OSError as error:  # a full disk, a directory that is read-only or was removed
            where = error.filename or self.run_dir.path
            raise StartError(f"{where}: {error.strerror or error}") from None
        finally:
            self.run_dir.release()

    async def _run_held(self) -> int:
        config, envoy = self.config, self._envoy
        is_adopted = False
        if envoy is not None:
            is_adopted = await self._until(envoy.adopt(config.drain.timeout_s)) or False
            if self._stop_asked.is_set():
                await envoy.stop()
                return 0
        check_ports(self._ports(is_adopted))
        write_config(config, self.run_dir)
        self._supervisor.start()
        keeping = [asyncio.create_task(self._guard())]
        try:
            if envoy is not None:
                envoy.start()
            await self._until(self._started())
            if envoy is not None:
                keeping.append(asyncio.create_task(envoy.keep()))
            if not self._stop_asked.is_set():
                log.info("started")  # for a log without the banner
                self._on_ready(self)
            await self._stop_asked.wait()
            await self._until(self._drained(), self._stop_now)
        except StartError:
            if envoy is not None and is_adopted:
                envoy.leave()
            raise
        finally:
            for task in keeping:
                task.cancel()
            await asyncio.gather(*keeping, return_exceptions=True)
            if envoy is not None:
                await envoy.stop()
            await self._supervisor.close()
            if self.engines:  # they ended with us: nobody is to be remembered
                self.run_dir.registry.unlink(missing_ok=True)
        return 0

    def stop(self) -> None:
        """The first call drains, the second ends at once."""
        if self._stop_asked.is_set():
            self._stop_now.set()
        self._stop_asked.set()

    def _take_signals(self) -> None:
        """Also the one of a terminal that closes, except where `nohup` wants it ignored."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, self._on_signal)

    def _on_signal(self) -> None:
        log.info("ending at once" if self._stop_asked.is_set() else "stopping: draining first")
        self.stop()

    # --- parts

    def _children(self) -> list[ChildSpec]:
        def process(role: str, index: int = 0) -> Callable[[int], list[str]]:
            arguments = [role, f"--index={index}", f"--run-dir={self.run_dir.path}"]
            start = [sys.executable, "-m", "sidecar.app.process", *arguments]
            return lambda fd: [*start, f"--lifeline={fd}"]

        children = [ChildSpec("control", process("control"))]
        workers = settings.workers_of(self.config)
        children += [ChildSpec(f"worker {i}", process("worker", i)) for i in range(workers)]
        children += [self._engine(i, options) for i, options in enumerate(self.engines)]
        return children

    def _engine(self, index: int, options: SimOptions) -> ChildSpec:
        return ChildSpec(
            f"sim {options.role} {index}",
            lambda fd: engine_command(options, fd),
            beats=False,
            restarts=False,
            output=self.run_dir.path / f"sim-{index}.log",
        )

    def _ports(self, is_adopted: bool) -> list[tuple[str, str]]:
        config = self.config
        ports = [
            ("registration.listen", config.registration.listen.removeprefix("tcp://")),
            ("observe.listen", config.observe.listen),
            ("admin.listen", config.admin.listen),
        ]
        if self._envoy is not None and not is_adopted:
            ports += [
                ("edge.listen", config.edge.listen),
                ("envoy.admin_listen", config.envoy.admin_listen),
            ]
        return ports

    async def _until(
        self, work: Coroutine[Any, Any, T], also: asyncio.Event | None = None
    ) -> T | None:
        """`work` to its end, or until a stop is asked for (or `also`, in its place): None."""
        task = asyncio.create_task(work)
        stop = asyncio.create_task((also or self._stop_asked).wait())
        await asyncio.wait([task, stop], return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            return None
        return task.result()

    async def _started(self) -> None:
        """Control answers, Envoy is live, and, with simulated engines, all of them are ready."""
        deadline = monotonic() + START_TIMEOUT_S
        await self._wait(lambda: self._observed("/healthz") is not None, deadline, "control")
        if self._envoy is not None:
            await self._envoy.wait_until_live()
            # Envoy is live with what it took; what it refused would show as requests that fail.
            await self._wait(self._is_accepted, deadline, "Envoy")
            await self._wait(self._is_worker_seen, deadline, "a worker")
        if self.engines:
            await self._wait(self._has_all_engines, deadline, "the simulated engines")

    async def _wait(self, is_done: Callable[[], bool], deadline: float, what: str) -> None:
        control = self._supervisor.children["control"]
        while not await asyncio.to_thread(is_done):
            if control.exits:
                raise StartError("the control process ended at its start; its log is above")
            if monotonic() > deadline:
                raise StartError(
                    f"{what} did not become ready in {START_TIMEOUT_S:.0f} s; "
                    f"logs are in {self.run_dir.path}"
                )
            await asyncio.sleep(POLL_S)

    def _is_accepted(self) -> bool:
        status = fetch_json(self.config.admin.listen, "/status") or {}
        for envoy in status.get("envoys", []):
            for kind, reason in envoy["rejections"].items():
                raise StartError(f"Envoy refuses its configuration ({kind}): {reason}")
        # An adopted one serves at once, but perhaps not yet as it is configured now.
        return any(envoy["is_current"] for envoy in status.get("envoys", []))

    def _is_worker_seen(self) -> bool:
        """Envoy's health check finds a worker a moment after that worker began to serve."""
        path = "/stats?filter=^cluster.workers.membership_healthy$"
        found = fetch(self.config.envoy.admin_listen, path)
        return found is not None and not found.strip().endswith(b": 0")

    def _has_all_engines(self) -> bool:
        instances = fetch_json(self.config.admin.listen, "/instances")
        return len([one for one in instances or [] if one["is_placeable"]]) >= len(self.engines)

    def _observed(self, path: str) -> bytes | None:
        return fetch(self.config.observe.listen, path)

    async def _guard(self) -> None:
        """Heal a run directory that somebody removed: sockets without a name reach nobody, and no
        child could start again."""
        while True:
            await asyncio.sleep(GUARD_S)
            if self.run_dir.is_held():
                continue
            log.error("%s was removed: making it again", self.run_dir.path)
            try:
                self.run_dir.hold_again()
                write_config(self.config, self.run_dir)
            except (StartError, OSError) as error:
                log.error("the run directory cannot be made again: %s", error)
                continue
            await asyncio.sleep(SAVED_S)
            self._supervisor.renew()

    async def _drained(self) -> None:
        """Ask control to drain and wait for its end; its own limits bound that."""
        drain = self.config.drain
        limit_s = drain.notice_s + drain.timeout_s + STOP_SLACK_S
        if not await self._supervisor.stop_one("control", limit_s):
            log.error("the control process did not drain within %.0f s", limit_s)


def write_config(config: Config, run_dir: RunDir) -> None:
    """For the child processes, which take it whole instead of reading files and flags again."""
    data = msgspec.json.format(msgspec.json.encode(config), indent=1)
    temporary = run_dir.config.with_suffix(".new")
    temporary.write_bytes(data)
    temporary.replace(run_dir.config)


def fetch(listen: str, path: str, timeout_s: float = 2.0) -> bytes | None:
    """GET from one of our own servers; None: it does not answer 200."""
    try:
        with _DIRECT.open(local_url(listen) + path, timeout=timeout_s) as answer:
            return bytes(answer.read())
    except (OSError, http.client.HTTPException):
        return None


_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""past any proxy that the environment names: what is asked is on this machine"""


def local_url(listen: str) -> str:
    """How a client on this machine reaches a server that listens there."""
    host, port = settings.host_port(listen)
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def fetch_json(listen: str, path: str) -> Any:
    """The JSON of it; None also when somebody else answers there, with something else."""
    body = fetch(listen, path)
    try:
        return None if body is None else msgspec.json.decode(body)
    except ValueError:
        return None


def simulated(spec: str, config: Config, mode: str) -> list[SimOptions]:
    """The engines of `--sim`, with the pool's connector. Raises OptionError.

    MoRI-IO's register with this sidecar. NIXL's do not, so theirs are ports that are free now.
    """
    fleet = parse_fleet(spec)
    places: list[dict[str, str]]
    if config.connector == "nixl":
        places = [{"http": address} for address in free_addresses(len(fleet))]
    else:
        listen = config.registration.listen.removeprefix("tcp://")
        places = [{"proxy": local_url(listen).removeprefix("http://")}] * len(fleet)
    return [
        SimOptions(role=role, connector=config.connector, dp_size=dp_size, mode=mode, **place)  # type: ignore[arg-type]  # checked there
        for (role, dp_size), place in zip(fleet, places, strict=True)
    ]


def free_addresses(count: int) -> list[str]:
    """Of this machine; bound all at once, so that none is there twice, and let go again."""
    with contextlib.ExitStack() as held:
        bound = [held.enter_context(bind("--sim", Address("127.0.0.1", 0))) for _ in range(count)]
        return [f"127.0.0.1:{port_of(one)}" for one in bound]


def naming(config: Config, engines: Sequence[SimOptions]) -> Config:
    """The configuration that also names those simulated engines that register nowhere."""
    static = tuple(
        StaticInstance(
            role=one.role, url=f"http://{one.http}", dp_size=one.dp_size, tp_size=one.tp_size
        )
        for one in engines
        if one.is_nixl
    )
    return msgspec.structs.replace(config, instances=(*config.instances, *static))


def run_up(up: Up) -> int:
    """Run it in a new event loop and return its exit code. Raises StartError."""
    with contextlib.suppress(KeyboardInterrupt):  # before it took the signals
        return asyncio.run(up.run())
    return 130


def down(config: Config) -> str:
    """End an Envoy that was left behind in the run directory; says what was done."""
    run_dir = run_dir_of(config)
    if not run_dir.path.is_dir():
        return f"no Envoy was left behind: there is no {run_dir.path}"
    run_dir.hold()
    try:
        found = living_envoy(run_dir.path)
        if found is None:
            return f"no Envoy was left behind in {run_dir.path}"
        stop_envoy(found, STOP_SLACK_S)
        return f"ended Envoy, pid {found.pid}"
    finally:
        run_dir.release()
