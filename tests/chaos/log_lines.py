"""What the logs must not say: a traceback, or an error that nothing explains."""

import re
from collections import Counter

from tests.chaos.aftermath import Row
from tests.e2e.stack import Stack

EXPLAINED = {
    r"Envoy \(pid \d+\) ended": "we killed it",
}
"""an ERROR line of the sidecar (a pattern) -> why it is right to say it in a chaos run"""
UNHANDLED = re.compile(r"^Traceback|was never retrieved|never awaited|Unclosed|Fatal Python", re.M)
SHOWN = 400


def error_lines(log: str) -> Counter[str]:
    """ERROR lines that are not explained, numbers left out so that equal ones count together."""
    lines = (line for line in log.splitlines() if re.search(r"\bERROR\b", line))
    odd = (line for line in lines if not any(re.search(known, line) for known in EXPLAINED))
    return Counter(re.sub(r"\d+", "N", line) for line in odd)


def log_rows(stack: Stack) -> list[Row]:
    log = stack.log()
    first = UNHANDLED.search(log)
    engines = "".join(path.read_text() for path in sorted(stack.folder.glob("engine-*.log")))
    theirs = UNHANDLED.search(engines)
    return [
        Row(
            "tracebacks of the sidecar",
            repr(log[first.start() :][:SHOWN]) if first else "none",
            "none",
            first is None,
        ),
        Row.equal("unexplained errors of the sidecar", dict(error_lines(log)), {}),
        Row(
            "tracebacks of engines",
            repr(engines[theirs.start() :][:SHOWN]) if theirs else "none",
            "none",
            theirs is None,
        ),
    ]
