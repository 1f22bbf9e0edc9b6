"""The documents say what the program does: names, keys and reasons are in both, or in neither."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio
import yaml
from prometheus_client import Counter, generate_latest
from prometheus_client.metrics import MetricWrapperBase

from sidecar.app.control import Control
from sidecar.config import Config, load
from sidecar.edge.run_dir import RunDir
from sidecar.exchange.reasons import Outcome, Reason

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
EXAMPLE = ROOT / "deploy" / "pd-sidecar.yaml"


def text_of(name: str) -> str:
    return (ROOT / name).read_text()


def prose_of(document: Path) -> str:
    """Without the blocks of code, in which `#` and brackets mean other things."""
    return re.sub(r"^```.*?^```", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)


# --- metrics


@pytest_asyncio.fixture
async def control(tmp_path: Path) -> Control:
    """A control process that never runs: its families are there from the start."""
    return Control(Config(), RunDir(tmp_path))


def documented() -> dict[str, str]:
    """Family -> the cell beside it."""
    rows = re.findall(r"^\| (`pd_sidecar_.*?) \| (.*?) \|", text_of("docs/metrics.md"), re.M)
    return {name: cell for names, cell in rows for name in re.findall(r"`(\w+)`", names)}


@pytest.mark.asyncio
async def test_every_metric_family_is_documented_and_no_other(control: Control) -> None:
    """Dashboards are written from the table; the type comes first in its row."""
    scrape = generate_latest(control._registry_metrics).decode()
    exported = dict(re.findall(r"^# TYPE (\S+) (\S+)", scrape, re.M))
    assert set(documented()) == set(exported)
    assert {n: c.partition(":")[0].partition(";")[0] for n, c in documented().items()} == exported


@pytest.mark.asyncio
async def test_the_table_names_the_labels_of_each_family(control: Control) -> None:
    """A row may hold two families, with the labels of both."""
    labels = {name: names for _, name, _, names, _ in control.metrics.live._families}
    for family in vars(control.metrics).values():
        if isinstance(family, MetricWrapperBase):
            is_counter = isinstance(family, Counter)
            labels[family._name + "_total" * is_counter] = tuple(family._labelnames)
    for name, cell in documented().items():
        named = re.findall(r"\w+", cell)
        counted = name.removesuffix("_total")
        assert set(labels.get(name, labels.get(counted, ("missing",)))) <= set(named), name


def test_every_outcome_is_documented() -> None:
    """The values of the label `outcome`."""
    assert "outcome` is one of " + ", ".join(Outcome) in text_of("docs/metrics.md")


# --- configuration


def keys_of(tree: dict[str, Any], at: str = "") -> set[str]:
    return {
        key
        for name, value in tree.items()
        for key in (keys_of(value, f"{at}{name}.") if isinstance(value, dict) else {f"{at}{name}"})
    }


def test_the_example_configuration_has_every_key_with_its_default() -> None:
    """Who copies the file whole changes nothing."""
    text = EXAMPLE.read_text()
    assert load(text, {}, {}) == Config()
    assert keys_of(yaml.safe_load(text)) == keys_of(msgspec.to_builtins(Config()))


def test_keys_named_in_the_documents_exist() -> None:
    """`section.key` in backticks, where `section` is one of ours."""
    keys = keys_of(msgspec.to_builtins(Config()))
    sections = {key.partition(".")[0] for key in keys if "." in key}
    named = {
        (document.name, key)
        for document in DOCUMENTS
        for key in re.findall(r"`([a-z_]+(?:\.[a-z_]+)+)`", prose_of(document))
        if key.partition(".")[0] in sections and not key.endswith((".log", ".json", ".py"))
    }
    stale = {(d, k) for d, k in named if not any(f"{key}.".startswith(f"{k}.") for key in keys)}
    assert not stale


# --- errors


def reasons() -> set[str]:
    envoys = "".join(path.read_text() for path in sorted((ROOT / "envoy").glob("*.yaml")))
    return {*Reason, *re.findall(r"key: x-pd-error, value: (\w+)", envoys)}


def test_every_reason_of_an_error_is_documented_and_no_other() -> None:
    """What a client finds in `x-pd-error` is in the operators' table."""
    table = text_of("docs/operations.md").partition("## Reading an answer")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| [^|]+ \| ([^|]*) \|", table, re.M)
    assert {name for row in rows[1:] for name in re.findall(r"`(\w+)`", row)} == reasons()


# --- doors, flags, links


def test_every_make_target_that_is_named_exists() -> None:
    """In prose and in blocks of code."""
    targets = set(re.findall(r"^([a-z-]+):", text_of("Makefile"), re.M))
    for document in DOCUMENTS:
        named = re.findall(r"(?:^|`)make ([a-z-]+)", document.read_text(), re.M)
        assert set(named) <= targets, document.name


def test_every_make_target_that_runs_has_its_help() -> None:
    """`make help` reads the comments."""
    phony = set(re.findall(r"^\.PHONY: (.*)$", text_of("Makefile"), re.M)[0].split())
    assert set(re.findall(r"^([a-z-]+):.*## ", text_of("Makefile"), re.M)) == phony


def anchors_of(document: Path) -> set[str]:
    """As GitHub makes them."""
    heads = re.findall(r"^#+ (.+)$", prose_of(document), re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_relative_link_resolves(document: Path) -> None:
    """The file exists, and in it the heading."""
    for link in re.findall(r"\]\(([^)\s]+)\)", prose_of(document)):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (document.parent / path) if path else document
        assert target.exists(), link
        assert not anchor or anchor in anchors_of(target), link


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_source_that_is_named_exists(document: Path) -> None:
    """Paths in backticks, from the root or from `sidecar/`."""
    for name in re.findall(r"`([\w./-]+/[\w-]*(?:\.py|\.yaml)?)`", prose_of(document)):
        if name.startswith(("/", ".")):
            continue
        assert (ROOT / name).exists() or (ROOT / "sidecar" / name).exists(), name


# --- what the code cites

CITING = [
    path
    for folder in ("sidecar", "envoy", "tests")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in (".py", ".yaml")
]
DESIGN = re.compile(r"\bdesign[\s#]+(§\d+(?:, §\d+)*)")
PROTOCOL = re.compile(
    r"""\bprotocol(?:\.md)?[\s#]+\(?
    ([a-h](?:(?:,|\sand)\s[a-h]\b)*)\s?(\d*)\b   # f14: a row of its table
    (?:,\s"([^"]+)")?                           # c, "Who notifies": a heading in it""",
    re.VERBOSE,
)


def sections_of(name: str) -> dict[str, str]:
    """The number or letter of each section -> its text."""
    parts = re.split(r"^## (\w+)\. ", text_of(name), flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_what_the_code_cites_is_there() -> None:
    """The sections of design.md by number, those of protocol.md by letter."""
    design, protocol = sections_of("docs/design.md"), sections_of("docs/protocol.md")
    for path in CITING:
        for numbers in DESIGN.findall(path.read_text()):
            assert set(re.findall(r"\d+", numbers)) <= design.keys(), path
        for letters, row, heading in PROTOCOL.findall(path.read_text()):
            cited = re.findall(r"\b[a-h]\b", letters)
            assert set(cited) <= protocol.keys(), path
            assert not row or f"| {cited[-1]}{row} |" in protocol[cited[-1]], path
            assert not heading or f"### {heading}\n" in protocol[cited[-1]], path
