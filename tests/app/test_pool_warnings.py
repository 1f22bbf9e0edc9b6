"""What is said of a pool's configuration that is valid all the same."""

from pathlib import Path

import pytest

from sidecar.app.control import Control
from sidecar.app.pool_warnings import pool_warnings
from sidecar.config import Config, StaticInstance
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
    """Those of MoRI-IO register. Said by `check`, and in the log when the control process starts;
    not refused: an empty pool may be what is wanted for the moment."""
    warnings = pool_warnings(config)
    assert len(warnings) == is_said
    Control(config, RunDir(tmp_path))
    logged = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert logged == warnings
