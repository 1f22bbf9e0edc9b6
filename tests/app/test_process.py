"""The child processes' own log: nothing in it looks like a fault that is none."""

import asyncio
import logging

import pytest

from sidecar.app.process import GRPC_LOG, is_worth_a_line


@pytest.mark.parametrize(
    ("error", "is_shown"), [(asyncio.CancelledError(), False), (ValueError("a fault"), True)]
)
def test_a_call_that_ends_with_us_is_no_error(error: BaseException, is_shown: bool) -> None:
    """gRPC's own line for it is dropped, and no other."""
    record = logging.LogRecord(
        GRPC_LOG, logging.ERROR, "", 0, "not handled", None, (type(error), error, None)
    )
    assert is_worth_a_line(record) is is_shown


def test_a_line_without_an_error_is_shown() -> None:
    """Most are."""
    assert is_worth_a_line(logging.LogRecord(GRPC_LOG, logging.INFO, "", 0, "x", None, None))
