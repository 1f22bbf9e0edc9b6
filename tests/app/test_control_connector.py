"""The control process of a pool with NIXL, in a run directory that a pool with MoRI-IO has used."""

from pathlib import Path
from time import monotonic, time

import pytest

from sidecar.app import registry_file
from sidecar.app.control import Control
from sidecar.config import Config, StaticInstance
from sidecar.edge.run_dir import RunDir
from sidecar.errors import HeartbeatError
from sidecar.routing.instance import Connector, Instance, Role, TransferMode
from sidecar.routing.view import View

REGISTERED = Instance(
    address="10.0.0.1:8000", role=Role.PREFILL, transfer_mode=TransferMode.READ, kv_host="10.0.0.1"
)
NIXL = Config(
    connector="nixl", instances=(StaticInstance(role="decode", url="http://10.0.0.9:8000"),)
)


def after_a_run_with_moriio(folder: Path) -> RunDir:
    """With what one engine registered."""
    run_dir = RunDir(folder)
    control = Control(Config(), run_dir)
    control.keeper.heard(REGISTERED, "10.0.0.1")
    saved = control.keeper.registry.to_file(monotonic(), time())
    registry_file.save(run_dir.registry, saved)
    return run_dir


def pool_of(control: Control) -> dict[str, Connector]:
    members = control.keeper.registry.members(None)
    return {member.instance.address: member.instance.connector for member in members}


@pytest.mark.asyncio
async def test_the_same_connector_brings_the_instances_back(tmp_path: Path) -> None:
    """Else the next test would say nothing."""
    run_dir = after_a_run_with_moriio(tmp_path)
    assert pool_of(Control(Config(), run_dir)) == {REGISTERED.address: Connector.MORIIO}


@pytest.mark.asyncio
async def test_no_instance_of_another_connector_comes_back_or_registers(tmp_path: Path) -> None:
    """Only what the configuration names is in the pool, from the first moment on."""
    control = Control(NIXL, after_a_run_with_moriio(tmp_path))
    assert pool_of(control) == {"10.0.0.9:8000": Connector.NIXL}
    with pytest.raises(HeartbeatError, match="connector: nixl"):
        control.keeper.heard(REGISTERED, "10.0.0.1")
    assert control.keeper.view == View(number=0)
    assert pool_of(control) == {"10.0.0.9:8000": Connector.NIXL}
