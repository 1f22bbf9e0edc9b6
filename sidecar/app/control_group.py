"""What the kernel's control groups (versions 1 and 2) say of this process."""

from pathlib import Path


def files_of(controller: str, name: str, old_name: str, root: Path) -> list[str]:
    """The text of a controller's file in our group and in all above it; empty where there is none.

    `old_name`: as version 1 calls it. Within a container its own group is the root.
    """
    found = []
    for line in read(root / "proc/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / (controller if controllers else "")
        at = Path(group.lstrip("/"))
        file = old_name if controllers else name
        found += [read(top / folder / file) for folder in [at, *at.parents]]
    return found


def read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:  # not mounted here, or no such controller
        return ""
