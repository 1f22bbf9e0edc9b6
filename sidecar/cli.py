"""The command `pd-sidecar`. Reads flags, calls `app`, prints; every fault is one clear line.

Each command imports what it needs by itself, so that `--help` and `status` need not wait for what
only `up` uses.
"""

import logging
import os
import sys
from pathlib import Path
from typing import Annotated

import typer
import yaml

from sidecar import __version__
from sidecar.config import Config, load
from sidecar.errors import ConfigError, PdSidecarError

app = typer.Typer(
    name="pd-sidecar",
    help="A router for prefill/decode disaggregated vLLM, behind Envoy.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

ConfigOption = Annotated[
    Path | None, typer.Option("--config", "-c", help="Configuration file (YAML).")
]
# The flags that override a key of the configuration; its default is the program's.
_DEFAULTS = Config()
ListenOption = Annotated[
    str | None,
    typer.Option(
        "--listen", help=f"ip:port of the OpenAI API, in Envoy ({_DEFAULTS.edge.listen})."
    ),
]
RegistrationOption = Annotated[
    str | None,
    typer.Option(
        "--registration", help=f"Where engines register ({_DEFAULTS.registration.listen})."
    ),
]
ObserveOption = Annotated[
    str | None,
    typer.Option("--observe", help=f"ip:port of metrics and health ({_DEFAULTS.observe.listen})."),
]
AdminOption = Annotated[
    str | None,
    typer.Option("--admin", help=f"ip:port of the admin API ({_DEFAULTS.admin.listen})."),
]
EnvoyAdminOption = Annotated[
    str | None,
    typer.Option(
        "--envoy-admin", help=f"ip:port of Envoy's admin ({_DEFAULTS.envoy.admin_listen})."
    ),
]
RunDirOption = Annotated[
    str | None,
    typer.Option(
        "--run-dir", metavar="<path>", help="Sockets, lock and state; another for a second sidecar."
    ),
]
ModeOption = Annotated[
    str, typer.Option("--mode", help="Of simulated engines with MoRI-IO: READ, WRITE.")
]
ConnectorOption = Annotated[
    str | None,
    typer.Option(
        "--connector", help=f"KV connector of all engines: moriio, nixl ({_DEFAULTS.connector})."
    ),
]
WorkersOption = Annotated[
    int | None, typer.Option("--workers", help="Worker processes, at most 8; 0: one per core.")
]


def _load(path: Path | None, flags: dict[str, object]) -> Config:
    text = ""
    if path is not None:
        try:
            text = path.read_text()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise ConfigError([f"--config {path}: {reason}"]) from None
    return load(text, os.environ, flags)


def _flags(
    listen: str | None,
    registration: str | None,
    observe: str | None,
    admin: str | None,
    envoy_admin: str | None,
    run_dir: str | None,
    workers: int | None,
) -> dict[str, object]:
    return {
        "edge.listen": listen,
        "registration.listen": registration,
        "observe.listen": observe,
        "admin.listen": admin,
        "envoy.admin_listen": envoy_admin,
        "run_dir": run_dir,
        "workers": workers,
    }


@app.command()
def up(
    config: ConfigOption = None,
    sim: Annotated[
        str | None,
        typer.Option(
            "--sim", help="Also start simulated engines: 2P2D, or 2Px8+3Dx8 with 8 ranks each."
        ),
    ] = None,
    connector: ConnectorOption = None,
    mode: ModeOption = "READ",
    listen: ListenOption = None,
    registration: RegistrationOption = None,
    observe: ObserveOption = None,
    admin: AdminOption = None,
    envoy_admin: EnvoyAdminOption = None,
    run_dir: RunDirOption = None,
    workers: WorkersOption = None,
) -> None:
    """Everything on this machine: Envoy, the sidecar and, with --sim, engines without a GPU.

    The configuration has more settings than there are flags: see `deploy/pd-sidecar.yaml`.
    """
    from sidecar.app.standard_streams import say
    from sidecar.app.up import Up, run_up, simulated
    from sidecar.show import banner

    flags = _flags(listen, registration, observe, admin, envoy_admin, run_dir, workers)
    settings = _load(config, {**flags, "connector": connector})
    engines = simulated(sim, settings, mode.upper()) if sim else []
    _log()
    raise typer.Exit(
        run_up(
            Up(
                settings,
                has_envoy=True,
                engines=engines,
                on_ready=lambda started: say(banner(started)),
            )
        )
    )


@app.command()
def demo(
    config: ConfigOption = None,
    connector: ConnectorOption = None,
    mode: ModeOption = "READ",
    listen: ListenOption = None,
    registration: RegistrationOption = None,
    observe: ObserveOption = None,
    admin: AdminOption = None,
    envoy_admin: EnvoyAdminOption = None,
    run_dir: RunDirOption = None,
    workers: WorkersOption = None,
) -> None:
    """Starts everything with simulated engines, sends a few requests, shows it, stops again."""
    from sidecar.app.demo import FLEET, run_demo
    from sidecar.app.up import simulated
    from sidecar.show import status_table

    flags = _flags(listen, registration, observe, admin, envoy_admin, run_dir, workers)
    settings = _load(config, {**flags, "connector": connector})
    engines = simulated(FLEET, settings, mode.upper())
    _log()
    raise typer.Exit(run_demo(settings, engines, status_table))


@app.command()
def serve(
    config: ConfigOption = None,
    listen: ListenOption = None,
    registration: RegistrationOption = None,
    observe: ObserveOption = None,
    admin: AdminOption = None,
    envoy_admin: EnvoyAdminOption = None,
    run_dir: RunDirOption = None,
    workers: WorkersOption = None,
) -> None:
    """The sidecar alone, for a pod in which Envoy is another container (see `bootstrap`)."""
    from sidecar.app.standard_streams import say
    from sidecar.app.up import Up, run_up
    from sidecar.show import serve_banner

    settings = _load(
        config, _flags(listen, registration, observe, admin, envoy_admin, run_dir, workers)
    )
    _log()
    raise typer.Exit(
        run_up(Up(settings, has_envoy=False, on_ready=lambda started: say(serve_banner(started))))
    )


@app.command()
def down(config: ConfigOption = None, run_dir: RunDirOption = None) -> None:
    """End an Envoy that was left behind in the run directory."""
    from sidecar.app.up import down as end

    settings = _load(config, {"run_dir": run_dir})
    print(end(settings))


@app.command()
def bootstrap(
    config: ConfigOption = None,
    listen: ListenOption = None,
    envoy_admin: EnvoyAdminOption = None,
    run_dir: RunDirOption = None,
) -> None:
    """Print the Envoy bootstrap (YAML) that goes with `serve` and the same configuration."""
    from sidecar.app.up import bootstrap_of, run_dir_of

    settings = _load(config, _flags(listen, None, None, None, envoy_admin, run_dir, None))
    document = bootstrap_of(settings, run_dir_of(settings))
    print(yaml.safe_dump(document, sort_keys=False), end="")


@app.command()
def check(config: ConfigOption = None) -> None:
    """Check a configuration and the kernel's limits; says every fault at once."""
    from sidecar.app.kernel_limits import kernel_warnings
    from sidecar.app.pool_warnings import pool_warnings
    from sidecar.app.settings import limits, static_instances
    from sidecar.edge.envoy_process import find_envoy

    settings = _load(config, {})
    if settings.envoy.path is not None:
        find_envoy(settings.envoy.path)
    static_instances(settings)
    limits(settings)
    for warning in [*kernel_warnings(settings), *pool_warnings(settings)]:
        print(f"warning: {warning}")
    print("the configuration is fine")


@app.command()
def status(
    config: ConfigOption = None,
    admin: AdminOption = None,
) -> None:
    """The pool, its slots and recent outcomes as a table."""
    from sidecar.app.up import fetch_json
    from sidecar.show import status_table

    settings = _load(config, {"admin.listen": admin})
    found = fetch_json(settings.admin.listen, "/status")
    if found is None:
        raise PdSidecarError(
            f"no sidecar answers on {settings.admin.listen}; start one, or name its admin address "
            "with --admin"
        )
    status_table(found)


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    add_help_option=False,
)
def sim(context: typer.Context) -> None:
    """One simulated engine, with MoRI-IO or NIXL, no GPU (`pd-sidecar sim --help`)."""
    os.execv(sys.executable, [sys.executable, "-m", "sidecar.sim", "engine", *context.args])


def _version(value: bool) -> None:
    if value:
        print(f"pd-sidecar {__version__}")
        raise typer.Exit()


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def _log() -> None:
    from sidecar.app.process import LOG_FORMAT, raise_file_limit

    logging.basicConfig(level=logging.INFO, format=LOG_FORMAT, stream=sys.stderr)
    raise_file_limit()


def main() -> None:
    """Entry point: faults of the configuration, the command line and the start are single lines."""
    from sidecar.app.standard_streams import ensure_open
    from sidecar.sim.options import OptionError

    ensure_open()
    try:
        app()
    except ConfigError as error:
        for fault in error.faults:
            print(f"pd-sidecar: {fault}", file=sys.stderr)
        sys.exit(2)
    except (PdSidecarError, OptionError) as error:
        print(f"pd-sidecar: {error}", file=sys.stderr)
        sys.exit(1)
    except OSError as error:  # a full disk, output that cannot be written
        where = f"{error.filename}: " if error.filename else ""
        print(f"pd-sidecar: {where}{error.strerror or error}", file=sys.stderr)
        sys.exit(1)
