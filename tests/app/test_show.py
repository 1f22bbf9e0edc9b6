"""What a person sees: the table of slots and the banner, with the connector where it matters."""

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from sidecar.app.up import Up
from sidecar.config import Config
from sidecar.config.keys import Admin
from sidecar.show import serve_banner, slot_table
from tests.ports import free_port


def row(connector: str, mode: str) -> dict[str, Any]:
    return {
        "name": "p0",
        "role": "prefill",
        "address": "10.0.0.1:8000",
        "state": "ready",
        "is_placeable": True,
        "connector": connector,
        "transfer_mode": mode,
        "version": "0.33",
        "models": ["m"],
        "heartbeat_age_s": None,
        "ranks": [{"dp_rank": 0, "in_flight": 0, "placed": 0}],
    }


@pytest.mark.parametrize(
    ("connector", "mode", "shown"),
    [("moriio", "READ", "READ"), ("moriio", "WRITE", "WRITE"), ("nixl", "READ", "NIXL")],
)
def test_the_table_shows_how_kv_moves(connector: str, mode: str, shown: str) -> None:
    """One column, as wide as it was: NIXL has but one mode."""
    console = Console(width=80)
    with console.capture() as capture:
        console.print(slot_table([row(connector, mode)]))
    _, line = capture.get().splitlines()
    assert line.split()[4] == shown


@pytest.mark.parametrize(
    ("connector", "words"),
    [("moriio", "register at tcp://0.0.0.0:36367"), ("nixl", "NIXL, of `instances`")],
)
def test_the_banner_says_where_engines_come_from(
    connector: str, words: str, tmp_path: Path
) -> None:
    """Engines with NIXL register nowhere, so no port is named for them."""
    nobody = Admin(listen=f"127.0.0.1:{free_port()}")
    config = Config(connector=connector, run_dir=str(tmp_path), admin=nobody)
    banner = serve_banner(Up(config, has_envoy=False))
    assert f"engines         {words}" in banner
    assert "none ready yet" in banner
