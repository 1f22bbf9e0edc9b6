"""`make fuzz`: every target for its share of the time, each in its own process, under atheris.

Prints a line a target. Exit code 1 when one found something: the input is then in a file, which is
named with the command that runs it again.
"""

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.target import Target
from tests.fuzz.targets import TARGETS, target

MAX_INPUT_BYTES = 8192
SLOWEST_S = 5
"""one input that takes longer is a finding"""
MEMORY_MIB = 1024
START_S = 60.0
"""for a process to import, and to run its corpus once; not of a search's own time"""
_STATE = re.compile(r"^#(\d+)\s+\S+ .*?cov: (\d+) .*?corp: (\d+)", re.MULTILINE)
_COUNT = re.compile(r"^stat::number_of_executed_units:\s+(\d+)", re.MULTILINE)
_RATE = re.compile(r"^stat::average_exec_per_sec:\s+(\d+)", re.MULTILINE)


@dataclass(frozen=True)
class Search:
    """What one target came to."""

    target: Target
    executions: int
    per_second: int
    coverage: int
    corpus: int
    findings: tuple[Path, ...]
    is_broken: bool
    """it ended neither by its time nor by a finding"""
    log: Path

    @property
    def is_good(self) -> bool:
        return not self.findings and not self.is_broken

    def __str__(self) -> str:
        return (
            f"{self.target.name:15}{self.executions:>12,}{self.per_second:>10,}"
            f"{self.coverage:>10}{self.corpus:>8}{len(self.findings):>10}"
        )


HEADER = (
    f"{'target':15}{'executions':>12}{'per s':>10}{'coverage':>10}{'corpus':>8}{'findings':>10}"
)


def search(one: Target, seconds: int, folder: Path) -> Search:
    found, starts = folder / one.name / "corpus", folder / one.name / "starts"
    for path in (found, starts):
        path.mkdir(parents=True)
    for number, data in enumerate(one.starts):
        (starts / f"{number:04}").write_bytes(data)
    log = folder / one.name / "log"
    options = [
        f"-max_total_time={seconds}",
        f"-max_len={MAX_INPUT_BYTES}",
        f"-timeout={SLOWEST_S}",
        f"-rss_limit_mb={MEMORY_MIB}",
        f"-artifact_prefix={folder / one.name}/input-",
        "-print_final_stats=1",
    ]
    if one.words:
        words = folder / one.name / "words"
        words.write_text("".join(f"{_quoted(word)}\n" for word in one.words))
        options.append(f"-dict={words}")
    with log.open("wb") as output:
        command = [sys.executable, "-m", "tests.fuzz.run_target", one.name, *options]
        process = subprocess.Popen(
            [*command, found, starts],
            stdout=output,
            stderr=output,
            # libFuzzer ends a process at once: what a target keeps in files goes with the folder.
            env=os.environ | {"TMPDIR": str(folder)},
        )
        try:
            code = process.wait(seconds + START_S)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
    return _read(one, code, log, tuple(sorted((folder / one.name).glob("input-*"))))


def _quoted(word: str) -> str:
    """As libFuzzer's dictionaries have it."""
    safe = [c if c.isalnum() else f"\\x{byte:02x}" for c in word for byte in c.encode()]
    return f'"{"".join(safe)}"'


def _read(one: Target, code: int, log: Path, findings: tuple[Path, ...]) -> Search:
    text = log.read_text(errors="replace")
    states = _STATE.findall(text)
    count, rate = _COUNT.search(text), _RATE.search(text)
    return Search(
        target=one,
        executions=int(count[1]) if count else int(states[-1][0]) if states else 0,
        per_second=int(rate[1]) if rate else 0,
        coverage=int(states[-1][1]) if states else 0,
        corpus=int(states[-1][2]) if states else 0,
        findings=findings,
        is_broken=code != 0 and not findings,
        log=log,
    )


def search_all(targets: list[Target], seconds: int, folder: Path) -> Iterator[Search]:
    side_by_side = min(len(os.sched_getaffinity(0)), len(targets))
    share = max(1, seconds * side_by_side // len(targets))
    with ThreadPoolExecutor(side_by_side) as pool:
        yield from pool.map(lambda one: search(one, share, folder), targets)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make fuzz")
    parser.add_argument("--seconds", type=int, default=300, help="for all targets together")
    parser.add_argument("--only", nargs="*", type=target, default=None, metavar="TARGET")
    arguments = parser.parse_args()
    if importlib.util.find_spec("atheris") is None:
        print(f"make fuzz: atheris is not there for Python {sys.version.split()[0]}; nothing tried")
        return 0
    folder = Path(tempfile.mkdtemp(prefix="pd-sidecar-fuzz-"))
    start, searches = time.monotonic(), []
    print(HEADER)
    for one in search_all(arguments.only or list(TARGETS), arguments.seconds, folder):
        print(one, flush=True)
        searches.append(one)
    tried = sum(one.executions for one in searches)
    print(f"{tried:,} inputs in {time.monotonic() - start:.0f} s")
    if all(one.is_good for one in searches):
        shutil.rmtree(folder)
        return 0
    for one in searches:
        for path in one.findings:
            print(f"\nfound by {one.target.name} (the end of {one.log}):")
            print("\n".join(_traceback(one.log)))
            print(f"again: {sys.executable} -m tests.fuzz.run_target {one.target.name} {path}")
        if one.is_broken:
            print(f"\n{one.target.name} ended before its time, see {one.log}")
    return 1


def _traceback(log: Path) -> list[str]:
    lines = log.read_text(errors="replace").splitlines()
    begins = next((i for i, line in enumerate(lines) if "Uncaught Python exception" in line), None)
    if begins is None:  # too slow, too large, or the process itself died
        return lines[-20:]
    ends = next((i for i, line in enumerate(lines) if i > begins and not line.strip()), None)
    return lines[begins:ends]


if __name__ == "__main__":
    sys.exit(main())
