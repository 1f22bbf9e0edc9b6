"""The fleet notation and the command line made from options."""

import subprocess
import sys

import pytest

from sidecar.sim.fleet import engine_command, parse_fleet
from sidecar.sim.options import OptionError, SimOptions, parse_release


@pytest.mark.parametrize(
    ("spec", "instances"),
    [
        ("1P1D", [("prefill", 1), ("decode", 1)]),
        ("2P2D", [("prefill", 1)] * 2 + [("decode", 1)] * 2),
        ("2Px8+3Dx8", [("prefill", 8)] * 2 + [("decode", 8)] * 3),
        ("1Px4+1Px8+2D", [("prefill", 4), ("prefill", 8), ("decode", 1), ("decode", 1)]),
        (" 1D ", [("decode", 1)]),
    ],
)
def test_fleet_is_read(spec, instances) -> None:
    assert list(parse_fleet(spec)) == instances


@pytest.mark.parametrize(
    ("spec", "part"),
    [
        ("", "''"),
        ("2", "'2'"),
        ("2P2X", "'2X'"),
        ("P", "'P'"),
        ("0P1D", "'0P1D'"),
        ("2P+", "'2P+'"),
        ("2Px8D", "'D'"),
        ("2Px8 3D", "' 3D'"),
        ("300P", "300 instances"),
    ],
)
def test_bad_fleet_names_the_part(spec, part) -> None:
    with pytest.raises(OptionError) as caught:
        parse_fleet(spec)
    assert part in str(caught.value)


def test_bad_fleet_gives_an_example() -> None:
    with pytest.raises(OptionError, match="for example 2P2D"):
        parse_fleet("two")


def test_command_carries_every_option() -> None:
    options = SimOptions(role="decode", http="127.0.0.1:81", dp_size=4, mode="WRITE", proxy="")
    command = engine_command(options, 9)
    assert command[:4] == [sys.executable, "-m", "sidecar.sim", "engine"]
    assert {"--role=decode", "--http=127.0.0.1:81", "--dp-size=4", "--proxy="} <= set(command)
    assert "--lifeline-fd=9" in command
    assert not any(one.startswith("--shape") for one in command)


def test_fleet_imports_nothing_heavy() -> None:
    code = (
        "import sys; from sidecar.sim import fleet; "
        "assert not {'zmq','aiohttp','grpc','uvloop','msgspec','asyncio'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=20)


@pytest.mark.parametrize(
    ("version", "release"),
    [("0.33.0", (0, 33)), ("0.32.0rc1+cpu", (0, 32)), ("1.0", (1, 0))],
)
def test_release(version, release) -> None:
    assert parse_release(version) == release


@pytest.mark.parametrize(
    ("version", "shape", "sent"),
    [
        ("0.19.1", None, "register"),
        ("0.20.0", None, "typed"),
        ("0.33.0", "register", "register"),
    ],
)
def test_shape_follows_the_version_unless_set(version, shape, sent) -> None:
    assert SimOptions(role="prefill", version=version, shape=shape).heartbeat_shape == sent
