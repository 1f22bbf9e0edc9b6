"""How the prefill client gets its connections: names, addresses, TLS; and who is to blame."""

import asyncio
import errno
import resource
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from polling import until
from prefill_peer import Peer, leg, on_both_loops, open_files

from sidecar.edge import prefill_client
from sidecar.edge.prefill_client import End, PrefillClient
from sidecar.exchange.events import PrefillFailed
from sidecar.exchange.reasons import Reason
from sidecar.wire.http_url import HttpUrl

NOTHING = "<PrefillClient: 0 legs, 0 idle>"
ANSWERED = 200


class Names:
    """A name server; `found` are the addresses of every name."""

    def __init__(self, *found: str | BaseException) -> None:
        self.found = list(found)
        self.asked: list[str] = []

    async def resolve(self, name: str) -> list[str]:
        self.asked.append(name)
        await asyncio.sleep(0)
        addresses = []
        for one in self.found:
            if isinstance(one, BaseException):
                raise one
            addresses.append(one)
        return addresses


@asynccontextmanager
async def a_client(
    names: Names | None = None, connect_timeout_s: float = 2.0
) -> AsyncIterator[PrefillClient]:
    client = PrefillClient(connect_timeout_s, names.resolve if names is not None else None)
    try:
        yield client
    finally:
        await client.close()


def outcome(end: End) -> object:
    return end.reason if isinstance(end, PrefillFailed) else end.status


def named(peer: Peer, name: str = "engine") -> str:
    return peer.url.replace(urlsplit(peer.url).hostname or "", name)


@contextmanager
def silence(address: str = "127.0.0.3") -> Iterator[int]:
    """A port whose backlog is full: connections to it are neither taken nor refused."""
    with socket.socket() as full, socket.socket() as first, socket.socket() as second:
        full.bind((address, 0))
        full.listen(0)
        for waiting in (first, second):
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        yield full.getsockname()[1]


@contextmanager
def nobody(address: str = "127.0.0.1", family: int = socket.AF_INET) -> Iterator[int]:
    """A port that refuses."""
    with socket.socket(family) as free:
        free.bind((address, 0))
        yield free.getsockname()[1]


@contextmanager
def no_more_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as probe:
        lowest_free = probe.fileno()
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@on_both_loops
async def test_each_address_of_a_name_is_tried() -> None:
    """One that refuses, and one that is silent, hinder no other; the silent one costs its share."""
    async with Peer() as peer:
        for before in ([], ["127.0.0.2"], ["::1", "127.0.0.2"]):
            async with a_client(Names(*before, "127.0.0.1")) as client:
                assert outcome(await client.send(leg(named(peer)))) == ANSWERED
    with silence() as port:
        async with (
            Peer(port=port) as peer,
            a_client(Names("127.0.0.3", "127.0.0.1"), 1.0) as client,
        ):
            end = await client.send(leg(named(peer)))
            assert outcome(end) == ANSWERED
            assert 0.4 < end.seconds < 5


@on_both_loops
async def test_a_name_nobody_listens_at_is_refused() -> None:
    """Unless one of its addresses was silent: an engine behind a full backlog lives."""
    with nobody() as port, nobody("::1", socket.AF_INET6):
        async with a_client(Names("::1", "127.0.0.2", "127.0.0.1")) as client:
            end = await client.send(leg(f"http://engine:{port}/x"))
            assert outcome(end) is Reason.PREFILL_REFUSED
    with silence() as port:
        for found in (("127.0.0.3", "127.0.0.2"), ("127.0.0.2", "127.0.0.3"), ("127.0.0.3",)):
            async with a_client(Names(*found), 0.4) as client:
                end = await client.send(leg(f"http://engine:{port}/x"))
                assert outcome(end) is Reason.PREFILL_UNREACHABLE
                assert end.seconds < 5


class Ipv4Only(PrefillClient):
    """On a machine that has no IPv6."""

    async def _dial(self, url: HttpUrl, address: str) -> prefill_client._Connection:
        if ":" in address:
            raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
        return await super()._dial(url, address)


@on_both_loops
async def test_an_address_this_machine_cannot_reach_does_not_excuse_the_others() -> None:
    """They refused; alone, it is our fault."""
    with nobody() as port:
        for found in (("::9", "127.0.0.1"), ("127.0.0.1", "::9")):
            client = Ipv4Only(2.0, Names(*found).resolve)
            end = await client.send(leg(f"http://engine:{port}/x"))
            assert outcome(end) is Reason.PREFILL_REFUSED
            await client.close()
        client = Ipv4Only(2.0, Names("::9").resolve)
        with pytest.raises(OSError, match="Cannot assign"):
            await client.send(leg(f"http://engine:{port}/x"))
        await client.close()


@on_both_loops
async def test_a_burst_to_one_name_asks_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And again when that is old, or no connection came of it: the name may have moved."""
    names = Names("127.0.0.1")
    async with Peer() as peer, a_client(names) as client:
        ends = await asyncio.gather(*(client.send(leg(named(peer))) for _ in range(100)))
        assert {outcome(end) for end in ends} == {ANSWERED}
        assert names.asked == ["engine"]
        names.found = ["127.0.0.2"]
        monkeypatch.setattr(prefill_client, "NAME_KEPT_S", -1.0)
        monkeypatch.setattr(prefill_client, "IDLE_S", 0.0)
        assert outcome(await client.send(leg(named(peer)))) is Reason.PREFILL_REFUSED
        monkeypatch.undo()
        names.found = ["127.0.0.1"]
        assert outcome(await client.send(leg(named(peer)))) == ANSWERED
        assert names.asked == ["engine"] * 3


@pytest.mark.parametrize(
    "fault", [socket.gaierror(socket.EAI_NONAME, "no such name"), UnicodeError("label too long")]
)
@on_both_loops
async def test_a_name_without_an_address_is_refused(fault: Exception) -> None:
    """For this leg: the next one asks again."""
    names = Names(fault)
    async with Peer() as peer, a_client(names) as client:
        ends = await asyncio.gather(*(client.send(leg(named(peer))) for _ in range(20)))
        assert {outcome(end) for end in ends} == {Reason.PREFILL_REFUSED}
        assert names.asked == ["engine"]
        names.found = ["127.0.0.1"]
        assert outcome(await client.send(leg(named(peer)))) == ANSWERED


@on_both_loops
async def test_a_name_server_that_is_silent_holds_nobody_longer_than_connecting_may() -> None:
    """Unreachable; and who leaves meanwhile takes nobody else along."""
    found: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()

    def waits(_name: str) -> Coroutine[None, None, list[str]]:
        async def wait() -> list[str]:
            return await found

        return wait()

    client = PrefillClient(0.3, waits)
    end = await client.send(leg("http://engine:1/x"))
    assert outcome(end) is Reason.PREFILL_UNREACHABLE
    await client.close()

    client = PrefillClient(20.0, waits)
    async with Peer() as peer:
        found = asyncio.get_running_loop().create_future()
        leaves, stays = client.send(leg(named(peer))), client.send(leg(named(peer)))
        await asyncio.sleep(0)
        leaves.cancel()
        await asyncio.wait([leaves])
        found.set_result(["127.0.0.1"])
        assert outcome(await stays) == ANSWERED
    await client.close()


@pytest.mark.parametrize(
    "url",
    [
        "http://a..b:1/x", f"http://{'x' * 64}:1/x", "http://name.invalid:1/x", "http://:80/x",
        "http://a:99999/x", "ftp://127.0.0.1/x", "nonsense", "http://[::1/x", "",
    ],
)  # fmt: skip
@on_both_loops
async def test_a_url_that_leads_nowhere_is_refused(url: str) -> None:
    """Never an exception: those are for what is our fault."""
    async with a_client() as client:
        assert outcome(await client.send(leg(url))) is Reason.PREFILL_REFUSED
        assert repr(client) == NOTHING


@on_both_loops
async def test_addresses_and_localhost() -> None:
    """IPv4, IPv6 in brackets, and what the machine's own names lead to; refused where nobody is."""
    for host in ("127.0.0.1", "::1"):
        async with Peer(host=host) as peer, a_client() as client:
            assert outcome(await client.send(leg(peer.url))) == ANSWERED
            (request,) = peer.requests
            netloc = urlsplit(peer.url).netloc.encode()
            assert request.startswith(b"POST /v1/completions HTTP/1.1\r\nhost: %s\r\n" % netloc)
    async with Peer() as peer, a_client() as client:
        assert outcome(await client.send(leg(named(peer, "localhost")))) == ANSWERED
    with nobody() as port, nobody("::1", socket.AF_INET6) as port_6:
        async with a_client() as client:
            for url in (f"http://127.0.0.1:{port}/x", f"http://[::1]:{port_6}/x"):
                assert outcome(await client.send(leg(url))) is Reason.PREFILL_REFUSED
            end = await client.send(leg(f"http://localhost:{port}/x"))
            assert outcome(end) is Reason.PREFILL_REFUSED


@on_both_loops
async def test_silence_is_unreachable_and_leaving_it_leaves_nothing() -> None:
    """At the connection's own limit; 50 that are cancelled meanwhile close their sockets."""
    with silence() as port:
        url = f"http://127.0.0.3:{port}/x"
        async with a_client(connect_timeout_s=0.3) as client:
            end = await client.send(leg(url))
            assert outcome(end) is Reason.PREFILL_UNREACHABLE
            assert 0.25 < end.seconds < 5
            end = await client.send(leg(url, timeout_s=0.1))
            assert outcome(end) is Reason.PREFILL_TIMEOUT
        async with a_client(connect_timeout_s=30) as client:
            before = open_files()
            sent = [client.send(leg(url)) for _ in range(50)]
            await until(lambda: open_files() >= before + 50)
            for one in sent:
                one.cancel()
            await asyncio.wait(sent)
            assert repr(client) == NOTHING
            await until(lambda: open_files() <= before)


@on_both_loops
async def test_no_socket_here_is_nobodys_fault_but_ours() -> None:
    """OSError, whether an address or a name of several is asked for; afterwards all is well."""
    async with Peer() as peer, a_client(Names("127.0.0.2", "127.0.0.1")) as client:
        await client.send(leg(named(peer)))  # whatever a first connection opens besides
        peer.lines[0].transport.close()
        await until(lambda: peer.lines[0].is_lost)
        for url in (peer.url, named(peer, "other")):
            with no_more_files(), pytest.raises(OSError, match="Too many open files") as caught:
                await client.send(leg(url))
            assert caught.value.errno == errno.EMFILE
            assert outcome(await client.send(leg(url))) == ANSWERED


@on_both_loops
async def test_a_fault_that_nobody_waits_for_is_not_complained_of() -> None:
    """Its client had left in the same moment."""
    async with Peer() as peer, a_client() as client:
        with no_more_files():
            sent = client.send(leg(peer.url))
            await until(sent.done)
            sent.cancel()
            del sent


@on_both_loops
async def test_a_server_that_never_answers_costs_the_whole_limit() -> None:
    """`seconds` says so; so it does of an answer."""

    async with Peer(lambda _: None) as peer, a_client() as client:
        end = await client.send(leg(peer.url, timeout_s=0.4))
        assert outcome(end) is Reason.PREFILL_TIMEOUT
        assert 0.35 < end.seconds < 5
        await until(lambda: not peer.open_lines, "the client's closing")


# --- TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """One of `engine`, signed by itself."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("makes its certificate with the openssl command, which is not here")
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        [
            openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
            "/CN=engine", "-addext", "subjectAltName=DNS:engine", "-keyout", key, "-out", cert,
        ],
        check=True,
        capture_output=True,
    )  # fmt: skip
    return cert, key


@pytest.fixture
def server_tls(certificate: tuple[Path, Path]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    return context


@pytest.fixture
def trust(certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    prefill_client._tls.cache_clear()
    yield
    prefill_client._tls.cache_clear()


@pytest.mark.usefixtures("trust")
@on_both_loops
async def test_an_https_engine_is_asked_over_tls(server_tls: ssl.SSLContext) -> None:
    """Its connection is used again, and when the engine closed it, or speaks unasked, it is not."""
    async with Peer(tls=server_tls) as peer, a_client(Names("127.0.0.1")) as client:
        url, body = named(peer), bytes(3 << 20)
        for _ in range(3):
            assert outcome(await client.send(leg(url, body))) == ANSWERED
        assert [len(line.requests) for line in peer.lines] == [3]
        peer.lines[0].transport.close()
        await until(lambda: peer.lines[0].is_lost)
        assert outcome(await client.send(leg(url))) == ANSWERED
        peer.lines[1].say(b"HTTP/1.1 408 Late\r\n\r\n")
        await until(lambda: peer.lines[1].is_lost)
        assert outcome(await client.send(leg(url))) == ANSWERED
        assert [len(line.requests) for line in peer.lines] == [3, 1, 1]
        sent = client.send(leg(url, bytes(70 << 20)))
        await until(lambda: peer.lines[2].heard)
        sent.cancel()
        await until(lambda: not peer.open_lines, "the client's closing")


@pytest.mark.usefixtures("trust")
@on_both_loops
async def test_a_certificate_that_is_not_trusted_is_refused(
    server_tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is sent: neither where it is another's, nor where nobody vouches for it."""
    async with Peer(tls=server_tls) as peer, a_client(Names("127.0.0.1")) as client:
        for name in ("else", "127.0.0.1"):
            assert outcome(await client.send(leg(named(peer, name)))) is Reason.PREFILL_REFUSED
        monkeypatch.delenv("SSL_CERT_FILE")
        prefill_client._tls.cache_clear()
        assert outcome(await client.send(leg(named(peer)))) is Reason.PREFILL_REFUSED
        assert peer.requests == []
        assert repr(client) == NOTHING


@on_both_loops
async def test_https_where_http_is_spoken_is_a_failure() -> None:
    """And the other way round; neither hangs longer than connecting, or the leg, may."""

    async with Peer() as peer, a_client(connect_timeout_s=0.5) as client:
        for line_does in (lambda line: line.say(b"HTTP/1.1 400 Bad\r\n\r\n"), lambda _: None):
            peer.on_line = line_does
            end = await client.send(leg(peer.url.replace("http:", "https:")))
            assert isinstance(end, PrefillFailed)
            assert end.seconds < 10


@on_both_loops
async def test_http_where_tls_is_spoken_is_a_failure(server_tls: ssl.SSLContext) -> None:
    """Reset."""
    async with Peer(tls=server_tls) as peer, a_client() as client:
        end = await client.send(leg(peer.url.replace("https:", "http:")))
        assert outcome(end) is Reason.PREFILL_RESET
