"""The Envoy beside `up`: one that was adopted may die at any moment."""

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sidecar.app.envoy_keeper import EnvoyKeeper
from sidecar.edge import envoy_process
from sidecar.errors import StartError
from tests.edge.polling import until
from tests.ports import free_port


@pytest.fixture
def run_dir() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(dir="/tmp", prefix="pd-"))
    yield path
    shutil.rmtree(path)


def bootstrap() -> dict[str, Any]:
    """Nothing to wait for: live at once."""
    address = {"address": "127.0.0.1", "port_value": free_port()}
    return {
        "node": {"id": "pd-keeper-test", "cluster": "c"},
        "admin": {"address": {"socket_address": address}},
    }


def keeper(run_dir: Path, document: dict[str, Any]) -> EnvoyKeeper:
    return EnvoyKeeper(envoy_process.find_envoy(None), document, run_dir, 1)


@pytest.mark.asyncio
async def test_an_adopted_envoy_that_dies_before_it_is_seen_alive_is_replaced(
    run_dir: Path,
) -> None:
    """The start goes on with another one, instead of ending with the words of a dead one."""
    document = bootstrap()
    first = keeper(run_dir, document)
    first.start()
    await first.wait_until_live()
    assert first.record is not None
    second = keeper(run_dir, document)
    assert await second.adopt(1.0)
    os.kill(first.record.pid, signal.SIGKILL)
    await until(lambda: not envoy_process.is_running(first.record), "it is dead")
    await second.wait_until_live()
    assert second.record is not None
    assert second.record.pid != first.record.pid
    await second.stop()


@pytest.mark.asyncio
async def test_one_that_we_started_and_that_dies_is_a_fault(
    run_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With Envoy's reason; and nobody says of a dead one that it goes on alone."""
    started = keeper(run_dir, bootstrap() | {"no_such_field": 1})
    started.start()
    with pytest.raises(StartError, match="no_such_field"):
        await started.wait_until_live()
    started.leave()
    assert "goes on alone" not in caplog.text
