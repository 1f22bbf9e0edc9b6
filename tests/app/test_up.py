"""What `up` asks of servers on this machine, and what it tells its simulated engines."""

import socket
import threading

import pytest

from sidecar.app.up import fetch, fetch_json, simulated
from sidecar.config import load


@pytest.mark.parametrize(
    ("listen", "proxy"),
    [
        ("tcp://0.0.0.0:5000", "127.0.0.1:5000"),
        ("tcp://[::]:5000", "[::1]:5000"),
        ("tcp://127.0.0.2:5000", "127.0.0.2:5000"),
        ("tcp://[::1]:5000", "[::1]:5000"),
    ],
)
def test_simulated_engines_register_where_it_listens(listen: str, proxy: str) -> None:
    """Also where that is one address alone."""
    config = load("", {}, {"registration.listen": listen})
    assert {engine.proxy for engine in simulated("1P1D", config, "READ")} == {proxy}


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"no HTTP\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n{not}",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n\xff\xff",
        b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\n{}",
        b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\n{}",
    ],
)
def test_somebody_else_on_the_port_is_nobody(
    monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    """Whatever it answers; and no proxy of the environment is asked in its place."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        assert fetch_json(f"127.0.0.1:{server.getsockname()[1]}", "/status") is None
        thread.join()


def test_no_proxy_stands_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """`http_proxy` is for the outside."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]")

        thread = threading.Thread(target=serve)
        thread.start()
        assert fetch(f"127.0.0.1:{server.getsockname()[1]}", "/x") == b"[]"
        thread.join()
