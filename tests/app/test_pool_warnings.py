"""What is said of a pool's configuration that is valid all the same."""

from pathlib import Path

import pytest

from sidecar.app.control import Control
from sidecar.app.pool_warnings import pool_warnings
from sidecar.cli import check
from sidecar.config import Config, StaticInstance, load
from sidecar.edge.run_dir import RunDir

ONE = (StaticInstance(role="decode", url="http://a:1"),)


@pytest.mark.parametrize(
    ("config", "is_said"),
    [
        (Config(connector="nixl"), True),
        (Config(connector="nixl", instances=ONE), False),
        (Config(), False),
    ],
)
@pytest.mark.asyncio
async def test_a_pool_of_nixl_that_names_no_engine_stays_empty(
    config: Config, is_said: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Those of MoRI-IO register. Said in the log when the control process starts, and not refused:
    an empty pool may be what is wanted for the moment."""
    warnings = pool_warnings(config)
    assert len(warnings) == is_said
    Control(config, RunDir(tmp_path))
    logged = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert logged == warnings


@pytest.mark.parametrize("text", ["connector: nixl\n", "connector: moriio\n"])
def test_check_says_it_too(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line of its own among the warnings, and the configuration is fine all the same."""
    path = tmp_path / "c.yaml"
    path.write_text(text)
    check(path)
    said = capsys.readouterr().out.splitlines()
    wanted = [f"warning: {one}" for one in pool_warnings(load(text, {}, {}))]
    assert [line for line in said if "connector" in line] == wanted
    assert said[-1] == "the configuration is fine"
