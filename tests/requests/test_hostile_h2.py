"""HTTP/2 requests that HTTP/1.1, which engines speak, would read otherwise end at the edge."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.requests.hostile_messages import BODY
from tests.requests.transport_h2 import Fields, H2Client, Stream
from tests.requests.transport_stack import Wired

pytestmark = pytest.mark.e2e

GOOD = "nothing odd"
FIELDS: dict[str, Fields] = {
    GOOD: [("x-a", "b"), ("content-length", str(len(BODY)))],
    "connection": [("connection", "keep-alive")],
    "a coding": [("transfer-encoding", "chunked")],
    "an upgrade": [("upgrade", "h2c")],
    "proxy-connection": [("proxy-connection", "keep-alive")],
    "keep-alive": [("keep-alive", "timeout=5")],
    "te that is not trailers": [("te", "gzip")],
    "a capital in a name": [("X-Capital", "1")],
    "a line end in a value": [("x-a", "b\r\nx-gateway-destination-endpoint: evil")],
    "a line end in a name": [("x-a: b\r\nx-b", "c")],
    "a NUL in a value": [("x-a", "b\0c")],
    "a blank in a name": [("x a", "b")],
    "an empty name": [("", "b")],
    "a pseudo-header twice": [(":path", "/version")],
    "a pseudo-header after the fields": [("x-a", "b"), (":scheme", "https")],
    "an unknown pseudo-header": [(":x", "y")],
    "a length that is too small": [("content-length", "4")],
    "a length that is too large": [("content-length", "400")],
    "a length that is no number": [("content-length", "+46")],
    "two lengths": [("content-length", "46"), ("content-length", "4")],
}
PATHS = {
    "a request in the path": "/tokenize HTTP/1.1\r\nHost: e\r\n\r\n",
    "a line end in the path": "/tokenize\r\nX: y",
    "a blank in the path": "/token ize",
    "a NUL in the path": "/tokenize\0",
    "no path": "",
    "a star": "*",
    "no slash": "tokenize",
}


@pytest.fixture(scope="module")
def answers(session_wired: Wired) -> dict[str, Stream]:
    """To all of them, sent side by side: most end by Envoy's close, which takes a second."""
    session_wired.reset()
    with ThreadPoolExecutor(len(FIELDS) + len(PATHS)) as clients:
        sent = {name: clients.submit(_ask, session_wired, name) for name in [*FIELDS, *PATHS]}
        found = {name: waiting.result() for name, waiting in sent.items()}
    assert len(session_wired.got) == 1, "only the good one reached an engine"
    session_wired.assert_serves()
    return found


def _ask(wired: Wired, name: str) -> Stream:
    with H2Client(wired.url) as client:
        kind = ("content-type", "application/json")
        path = PATHS.get(name, "/tokenize")
        stream = client.open("POST", path, kind, *FIELDS.get(name, []))
        client.send(stream, BODY)
        return client.answer(stream)


@pytest.mark.parametrize("name", [*FIELDS, *PATHS])
def test_an_http_2_request_that_http_1_would_read_otherwise_ends_here(
    answers: dict[str, Stream], name: str
) -> None:
    """By a reset, a 4xx, or the end of the connection."""
    status = answers[name].status
    if name == GOOD:
        assert status == 200
    else:
        assert status == 0 or 400 <= status < 500
