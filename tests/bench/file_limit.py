"""How many files a burst needs open in one process, and whether this machine allows it.

Every process of a run inherits the hard limit of the shell that started it and raises its soft one
to that, so the hungriest process decides: Envoy, with a client's and an engine's connection for
each request.
"""

import resource
from dataclasses import dataclass

ENVOY_FILES_EACH = 2
SPARE_FILES = 512
"""libraries, logs, listeners, pipes, health checks: seen 80 in an idle Envoy"""


@dataclass(frozen=True, slots=True)
class FileLimit:
    """What `clients` at once need, against the hard limit (None: unlimited)."""

    clients: int
    hard: int | None

    @property
    def needed(self) -> int:
        """In the hungriest process, Envoy."""
        return ENVOY_FILES_EACH * self.clients + SPARE_FILES

    @property
    def is_enough(self) -> bool:
        return self.hard is None or self.hard >= self.needed

    def describe(self) -> tuple[str, str]:
        """Two lines: what each process needs, and what there is."""
        each = self.clients + SPARE_FILES
        hard = "unlimited" if self.hard is None else str(self.hard)
        return (
            f"open files: {self.needed} needed, the hard limit (ulimit -Hn) is {hard}",
            f"  Envoy {ENVOY_FILES_EACH} x {self.clients} + {SPARE_FILES} = {self.needed}; "
            f"generator, worker and engine at most {each} each",
        )

    def advise(self) -> str:
        """How to raise a limit that is too low."""
        return (
            f"raise the hard limit to {self.needed} and try again: in this shell, as root, "
            f"`ulimit -Hn {self.needed}`; for a login `* hard nofile {self.needed}` in "
            f"/etc/security/limits.conf; in a container `--ulimit nofile={self.needed}`; in a "
            f"systemd unit `LimitNOFILE={self.needed}`"
        )


def raise_file_limit() -> int | None:
    """Raise the soft limit of open files to the hard one, and return that (None: unlimited)."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return None if hard == resource.RLIM_INFINITY else hard
