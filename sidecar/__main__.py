"""`python -m sidecar` is `pd-sidecar`."""

from sidecar.cli import main

main()
