"""A fleet of simulated instances: the `2Px8+3Dx8` notation and the command line of each.

Light: standard library only (see options). It starts nothing itself.
"""

import re
import sys
from dataclasses import fields

from sidecar.sim.options import OptionError, Role, SimOptions

MAX_INSTANCES = 256
_EXAMPLE = "for example 2P2D, or 2Px8+3Dx8 with data-parallel sizes"
_GROUP = re.compile(r"([1-9][0-9]{0,3})([PDpd])(?:x([1-9][0-9]{0,3}))?")


def parse_fleet(spec: str) -> tuple[tuple[Role, int], ...]:
    """Read a fleet spec into one (role, dp_size) for each instance, in the order written.

    `2P2D` is two prefill and two decode instances of one rank; `xN` after a role letter gives
    each instance of that group N ranks; `+` between groups is optional except after `xN`.
    Raises OptionError naming the part that cannot be read.
    """
    instances: list[tuple[Role, int]] = []
    for part in spec.strip().split("+"):
        at = 0
        while at < len(part) or not part:
            found = _GROUP.match(part, at)
            if not found:
                bad = part[at:] or spec
                raise OptionError(f"fleet {spec!r}: cannot read {bad!r} ({_EXAMPLE})")
            at = found.end()
            role: Role = "prefill" if found[2] in "Pp" else "decode"
            instances += [(role, int(found[3] or 1))] * int(found[1])
            if found[3] and at < len(part):
                raise OptionError(f"fleet {spec!r}: put a + before {part[at:]!r} ({_EXAMPLE})")
    if len(instances) > MAX_INSTANCES:
        raise OptionError(f"fleet {spec!r}: {len(instances)} instances, at most {MAX_INSTANCES}")
    return tuple(instances)


def engine_command(options: SimOptions, lifeline_fd: int | None = None) -> list[str]:
    """The argv that runs one instance; `lifeline_fd` must be inheritable by the child.

    The child ends when that descriptor reads end of file.
    """
    command = [sys.executable, "-m", "sidecar.sim", "engine"]
    for field in fields(options):
        value = getattr(options, field.name)
        if value is not None:
            # '=' keeps a value that starts with '-' from being read as an option.
            command.append(f"--{field.name.replace('_', '-')}={value}")
    if lifeline_fd is not None:
        command.append(f"--lifeline-fd={lifeline_fd}")
    return command
