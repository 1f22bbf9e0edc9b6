"""Stands in for AMD's `mori`, which has no build without their GPUs. See `io`."""

from . import io  # noqa: F401
