"""The project's own data files, in the wheel or in a checkout."""

from pathlib import Path

from sidecar.errors import StartError

_PACKAGE = Path(__file__).resolve().parent.parent


def envoy_yaml(name: str) -> str:
    """The text of a file of `envoy/`."""
    for folder in (_PACKAGE / "_resources" / "envoy", _PACKAGE.parent / "envoy"):
        path = folder / name
        if path.is_file():
            return path.read_text()
    raise StartError(f"the installation lacks envoy/{name}: install pd-sidecar again")
