"""`make bench` itself: what it refuses, and a small run of it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.machine import describe_machine
from tests.bench.needs import PROGRAMS, missing_modules, missing_programs


def run_bench(*flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.bench.bench", *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--only=ours,nginx"], "nginx: not one of ours, vllm-router"),
        (["--parts=all"], "all: not one of requests"),
        (["--rounds=0"], "invalid positive value"),
        (["--seconds=0"], "not between 0.1 and 60"),
    ],
)
def test_what_cannot_be_asked_is_refused(flags: list[str], words: str) -> None:
    """With the names that there are, before anything is started."""
    done = run_bench(*flags)
    assert done.returncode == 2
    assert words in done.stderr


def test_what_is_missing_is_named_in_one_line() -> None:
    """With the command that gets it; what is there is not named."""
    programs = {"no-such-one": "/nowhere", "sh": "/bin/sh", "no-other": "/nowhere"}
    assert missing_programs(programs) == [
        "no no-such-one and no no-other: apt-get install no-such-one no-other"
    ]
    assert missing_programs({"sh": "/nowhere"}) == []
    assert missing_modules(["json", "no_such_module"])[0].startswith("no no_such_module: pip")
    assert missing_modules(["json"]) == []


def test_the_machine_is_described_without_names() -> None:
    """Cores and versions; no path."""
    text = describe_machine()
    assert "cores of" in text
    assert "Envoy 1." in text
    assert "/" not in text.replace("nginx unknown", "")


@pytest.mark.e2e
@pytest.mark.skipif(
    bool(missing_programs(PROGRAMS)), reason="; ".join(missing_programs(PROGRAMS)) or "all is there"
)
def test_a_small_run_counts_every_answer(tmp_path: Path) -> None:
    """Of ours, with both legs, and of the engines alone: no failure, and the numbers as JSON."""
    numbers = tmp_path / "numbers.json"
    done = run_bench(
        "--parts=requests", "--only=ours,direct", "--rounds=1", "--seconds=0.2", f"--json={numbers}"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "None: every answer was decode's own" in done.stdout
    rows = json.loads(numbers.read_text())
    rates = {target for _, quantity, target, _, value in rows if "requests/s" in quantity and value}
    assert rates == {"ours", "direct"}
