"""Envoy's own refusals: status, reason and OpenAI's error shape, byte by byte over a socket."""

import http.client
import json
import socket
from collections.abc import Iterator

import pytest

from tests.e2e.stack import until
from tests.failures.edge_rows import EDGE_ROWS, EdgeRow
from tests.failures.pool import SETTLE_S, Pool

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    made = Pool("READ")
    yield made
    made.close()


def answer_to(pool: Pool, sent: bytes) -> http.client.HTTPResponse:
    host, _, port = pool.stack.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(sent)
        answer = http.client.HTTPResponse(connection, method="GET")
        answer.begin()
        body = answer.read()
    answer.body = body
    return answer


@pytest.mark.parametrize("row", EDGE_ROWS, ids=lambda row: row.name)
def test_envoys_own_refusals_have_the_same_shape(pool: Pool, row: EdgeRow) -> None:
    """Never with Envoy's details, which show socket paths; what met the sidecar is counted."""
    is_counted = row.reason == "upload_timeout"  # its exchange had begun
    before = pool.count("refusals_total", {"reason": row.reason})
    answer = answer_to(pool, row.sent)
    assert answer.status == row.status
    assert answer.getheader("x-pd-error") == row.reason
    assert answer.getheader("content-type") == "application/json"
    for name, value in row.headers:
        assert answer.getheader(name) == value
    error = json.loads(answer.body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == row.reason
    assert b"sock" not in answer.body
    if is_counted:
        reason = {"reason": row.reason}
        until(lambda: pool.count("refusals_total", reason) == before + 1, "counted", SETTLE_S)
    pool.wait_at_rest(1.0)
