"""Host and port text, there and back."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sidecar.wire.names import as_ip, join_address, normal_host, split_address


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("[::1]:80", "::1", 80),
        ("::1:80", "::1", 80),
        ("127.0.0.1:65535", "127.0.0.1", 65535),
        ("Host.example.:1", "host.example.", 1),
    ],
)
def test_split(text: str, host: str, port: int) -> None:
    assert split_address(text) == (host, port)


@given(host=st.ip_addresses(), port=st.integers(1, 65535))
def test_split_takes_back_what_join_gave(host: object, port: int) -> None:
    ip = as_ip(str(host))
    assume(ip is not None and not ip.is_unspecified and not ip.is_multicast)
    normal = normal_host(str(host))
    assert split_address(join_address(normal, port)) == (normal, port)


def test_join_brackets_ipv6_once() -> None:
    assert join_address("::1", 80) == join_address("[::1]", 80) == "[::1]:80"
    assert join_address("engine", 80) == "engine:80"


@pytest.mark.parametrize("text", ["", "host", "host:", "host:99999", "[::1]", "[::1", "[::1]:x"])
def test_what_is_no_address_says_so(text: str) -> None:
    with pytest.raises(ValueError):
        split_address(text)


def test_a_name_is_no_ip_and_a_scoped_one_neither() -> None:
    assert as_ip("engine") is None
    assert as_ip("fe80::1%eth0") is None
    assert str(as_ip("::ffff:10.0.0.1")) == "10.0.0.1"
