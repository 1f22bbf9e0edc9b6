"""`python -m sidecar.sim engine ...`: run one simulated instance in this process."""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields
from typing import Any, NoReturn

from sidecar.sim.options import HELP, OptionError, SimOptions

_SPECIAL: Mapping[str, dict[str, Any]] = {
    "model": {"action": "append", "default": None},
    "profiler": {"nargs": "?", "const": "torch"},
}
"""Options that may be given several times, or without a value."""


def main(arguments: Sequence[str]) -> int:
    """Run one instance; returns the exit status: 2 for a bad option or a port in use."""
    given = _parser().parse_args(arguments)
    try:
        options = SimOptions(
            **{field.name: _value_of(given, field) for field in fields(SimOptions)}
        )
        if given.lifeline_fd is not None:
            _check_descriptor(given.lifeline_fd)
        # Here, not above: a bad option is reported without loading aiohttp and zmq.
        from sidecar.sim.engine import run_engine

        run_engine(options, given.lifeline_fd)
    except OptionError as error:
        print(f"sidecar.sim: {error}", file=sys.stderr)
        return 2
    return 0


def _value_of(given: argparse.Namespace, field: Field[Any]) -> Any:
    value = getattr(given, field.name)
    if field.name == "model":
        return ",".join(value) if value else field.default
    return value


def _check_descriptor(descriptor: int) -> None:
    try:
        os.fstat(descriptor)
    except (OSError, OverflowError):
        raise OptionError(f"--lifeline-fd {descriptor} is not open in this process") from None


class _OneLineParser(argparse.ArgumentParser):
    """Reports a fault in one line, without the usage text."""

    def error(self, message: str) -> NoReturn:
        print(f"sidecar.sim: {message}", file=sys.stderr)
        raise SystemExit(2)


def _help(name: str, default: object) -> str:
    """argparse takes % for a format."""
    known = "" if default in (None, "", MISSING) else f" (default {default})"
    return HELP[name] + known


def _parser() -> argparse.ArgumentParser:
    parser = _OneLineParser(prog="python -m sidecar.sim", description=__doc__, allow_abbrev=False)
    commands = parser.add_subparsers(required=True, metavar="engine")
    engine = commands.add_parser(
        "engine",
        prog="pd-sidecar sim",
        allow_abbrev=False,
        help="one simulated instance",
        description="One simulated vLLM engine with the MoRI-IO connector or NIXL's, without "
        "a GPU. Prints one JSON line when it listens. Port 0 picks a free one.",
    )
    types = {"int": int, "float": float}
    for field in fields(SimOptions):
        settings: dict[str, Any] = {
            "type": types.get(getattr(field.type, "__name__", ""), str),
            "required": field.name == "role",
            "default": None if field.name == "role" else field.default,
            "help": _help(field.name, field.default),
        }
        name = "--" + field.name.replace("_", "-")
        engine.add_argument(name, **{**settings, **_SPECIAL.get(field.name, {})})
    engine.add_argument("--lifeline-fd", type=int, help="end when this descriptor reads EOF")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
