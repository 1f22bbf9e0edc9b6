"""`up --sim` and `demo` with NIXL: engines that register nowhere, and answer all the same."""

import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from sidecar.sim.model import expected_text
from tests.e2e.stack import Stack, http, until
from tests.e2e.test_demo import ANSWERS, RECEIPT, DemoRun

pytestmark = [pytest.mark.e2e, pytest.mark.timed]


class FleetStack(Stack):
    """`up` with simulated engines that it starts itself."""

    flags = ("--sim=1P1D", "--connector=nixl")

    def spawn(self) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "sidecar", "up", "--config", str(self.config_path)]
        with (self.folder / "up.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*command, *self.flags], stdout=log, stderr=log, start_new_session=True
            )
        return self.process


@pytest.fixture
def stack() -> Iterator[FleetStack]:
    made = FleetStack()
    try:
        made.start()
        yield made
    finally:
        print(made.log())  # pytest shows it with a failure only
        made.close()


def streamed_text(raw: bytes) -> str:
    lines = [line.removeprefix("data: ") for line in raw.decode().splitlines() if line]
    assert lines.pop() == "[DONE]"
    choices = [choice for line in lines for choice in json.loads(line)["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


def test_streamed_answer_names_both_engines_and_frees_prefills_blocks(stack: FleetStack) -> None:
    """One prefill and one decode engine, each with one leg, and not one complaint."""
    until(lambda: len(stack.placeable()) == 2, "both engines are placeable")
    body: dict[str, Any] = {
        "model": "sim-model",
        "messages": [{"role": "user", "content": "Hello " * 200}],
        "max_tokens": 20,
        "stream": True,
    }
    receipt, text = ask(stack, body)
    names = {one["role"]: one["name"] for one in stack.instances().values()}
    assert receipt == (f"{names['prefill']}#0", f"{names['decode']}#0")
    assert text == expected_text("chat", body)
    states = [json.loads(http("GET", f"http://{one}/sim/state")[1]) for one in stack.placeable()]
    by_role = {state["role"]: state for state in states}
    assert [state["connector"] for state in states] == ["nixl", "nixl"]
    assert by_role["prefill"]["ranks"]["prefill"] == by_role["decode"]["ranks"]["decode"] == [1]
    assert (by_role["prefill"]["released"], by_role["prefill"]["held_blocks"]) == (1, 0)
    assert [state["errors"] for state in states] == [{}, {}]
    addresses = stack.placeable()
    assert stack.stop() == 0
    assert [http("GET", f"http://{one}/health")[0] for one in addresses] == [0, 0]


@pytest.fixture
def demo() -> Iterator[DemoRun]:
    one = DemoRun()
    yield one
    one.close()


def test_demo_shows_answers_of_nixl_engines_and_ends(demo: DemoRun) -> None:
    """Four answers with receipts, four rows of NIXL engines, and nothing is left."""
    demo.start("--connector=nixl", "--workers=2")
    code, out, err = demo.end()
    assert code == 0, out + err + (demo.run_dir / "demo.log").read_text()
    assert "simulated (NIXL)" in out
    assert len(RECEIPT.findall(out)) == ANSWERS
    rows = re.findall(r"\b([pd])\d\b.* ready .*\bNIXL\b", out)
    assert sorted(rows) == ["d", "d", "p", "p"], out
    demo.assert_nothing_is_left()


def ask(stack: Stack, body: dict[str, Any]) -> tuple[tuple[str | None, str | None], str]:
    """The receipt and the text of one streamed chat."""
    request = urllib.request.Request(
        f"{stack.url}/v1/chat/completions",
        data=json.dumps(body).encode(),
        headers={"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        receipt = (answer.headers.get("x-pd-prefill"), answer.headers.get("x-pd-decode"))
        return receipt, streamed_text(answer.read())
