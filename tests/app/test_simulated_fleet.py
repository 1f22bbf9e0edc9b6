"""The engines of `up --sim`: how each connector's are made known to the router."""

import msgspec
import pytest

from sidecar.app.settings import static_instances
from sidecar.app.up import naming, simulated
from sidecar.config import Config, StaticInstance
from sidecar.sim.options import OptionError

NIXL = Config(connector="nixl")


def test_nixl_engines_are_named_in_the_configuration_beside_those_that_were() -> None:
    own = StaticInstance(role="decode", url="http://10.0.0.1:8000")
    engines = simulated("1Px8+2D", NIXL, "READ")
    config = naming(msgspec.structs.replace(NIXL, instances=(own,)), engines)
    assert config.instances[0] == own
    assert [(one.role, one.dp_size, one.url) for one in config.instances[1:]] == [
        (engine.role, engine.dp_size, f"http://{engine.http}") for engine in engines
    ]
    assert [engine.proxy for engine in engines] == [""] * 3
    # No address is there twice, or 0, which nobody could be told of.
    assert len(static_instances(config)) == 4
    assert all(int(engine.http.rsplit(":", 1)[1]) for engine in engines)


def test_moriio_engines_register_and_are_named_nowhere() -> None:
    config = Config()
    assert naming(config, simulated("1P1D", config, "WRITE")).instances == ()


def test_nixl_has_no_write_mode() -> None:
    with pytest.raises(OptionError, match="pull connector"):
        simulated("1P1D", NIXL, "WRITE")
