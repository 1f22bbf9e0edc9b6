"""What Envoy refuses before anyone is asked, in the same shape as all other errors."""

from dataclasses import dataclass

HOST = b"Host: x\r\n"
JSON = b"Content-Type: application/json\r\n"


@dataclass(frozen=True, kw_only=True)
class EdgeRow:
    name: str
    event: str
    sent: bytes
    """the request, byte for byte"""
    status: int
    reason: str
    headers: tuple[tuple[str, str], ...] = ()
    """that the answer must have"""


def request(line: str, *headers: bytes, body: bytes = b"") -> bytes:
    return line.encode() + b" HTTP/1.1\r\n" + HOST + b"".join(headers) + b"\r\n" + body


CHUNK = b"4000\r\n" + b"x" * 0x4000 + b"\r\n"

EDGE_ROWS = [
    EdgeRow(
        name="unknown_path",
        event="a path that is not of this API",
        sent=request("GET /v1/nothing"),
        status=404,
        reason="not_found",
    ),
    EdgeRow(
        name="wrong_method",
        event="a known path with another method",
        sent=request("GET /v1/completions"),
        status=405,
        reason="method_not_allowed",
        headers=(("allow", "POST"),),
    ),
    EdgeRow(
        name="connect",
        event="CONNECT",
        sent=request("CONNECT x:443"),
        status=404,
        reason="not_found",
    ),
    EdgeRow(
        name="upgrade",
        event="an upgrade (WebSocket)",
        sent=request("GET /health", b"Connection: Upgrade\r\nUpgrade: websocket\r\n"),
        status=403,
        reason="upgrade_refused",
    ),
    EdgeRow(
        name="not_http",
        event="not valid HTTP",
        sent=b"nonsense\r\n\r\n",
        status=400,
        reason="bad_request",
    ),
    EdgeRow(
        name="large_headers",
        event="headers beyond Envoy's limit",
        sent=request("GET /health", b"X-Large: " + b"x" * 70_000 + b"\r\n"),
        status=431,
        reason="headers_too_large",
    ),
    EdgeRow(
        name="slow_upload",
        event="the upload takes longer than `request.upload_timeout_s`",
        sent=request("POST /v1/completions", JSON, b"Content-Length: 100\r\n", body=b"{"),
        status=408,
        reason="upload_timeout",
    ),
    EdgeRow(
        name="endless_upload",
        event="an upload without a length grows over `tuning.http.max_body_bytes`",
        sent=request(
            "POST /v1/completions", JSON, b"Transfer-Encoding: chunked\r\n", body=CHUNK * 128
        ),
        status=413,
        reason="body_too_large",
    ),
]
