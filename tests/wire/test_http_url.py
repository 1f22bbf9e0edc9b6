"""URLs of engines, taken apart."""

import pytest

from sidecar.wire import http_url
from sidecar.wire.http_url import HttpUrl


@pytest.mark.parametrize(
    ("url", "read"),
    [
        ("http://a:1/x", HttpUrl(False, "a", True, 1, "a:1", "/x")),
        ("https://a/x?y=z&b", HttpUrl(True, "a", True, 443, "a", "/x?y=z&b")),
        ("http://10.0.0.1", HttpUrl(False, "10.0.0.1", False, 80, "10.0.0.1", "/")),
        ("http://[fd00::1]:8/v1", HttpUrl(False, "fd00::1", False, 8, "[fd00::1]:8", "/v1")),
        (
            "http://[fe80::1%eth0]:8/v1",
            HttpUrl(False, "fe80::1%eth0", False, 8, "[fe80::1%eth0]:8", "/v1"),
        ),
    ],
)
def test_where_a_url_leads(url: str, read: HttpUrl) -> None:
    """Host, port by scheme, what the host header says, path with its query."""
    assert http_url.read(url) == read


@pytest.mark.parametrize(
    "url",
    ["", "nonsense", "ftp://a/x", "http://", "http://:1/x", "http://a:99999/x", "http://[::1"],
)
def test_what_is_no_url_of_a_server_is_none(url: str) -> None:
    """No exception: the leg fails."""
    assert http_url.read(url) is None


def test_peers_differ_by_scheme_host_and_port() -> None:
    """A connection without TLS is none for https."""
    urls = ("http://a:1/x", "https://a:1/x", "http://a:2/x", "http://b:1/x")
    peers = {read.peer for url in urls if (read := http_url.read(url)) is not None}
    assert len(peers) == len(urls)
    same = [http_url.read("http://a:1/x"), http_url.read("http://a:1/y?z")]
    assert same[0] is not None
    assert same[1] is not None
    assert same[0].peer == same[1].peer
