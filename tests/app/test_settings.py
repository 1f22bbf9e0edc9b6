"""From the configuration to what each part takes."""

from pathlib import Path

import pytest

from sidecar.app import settings
from sidecar.config import WORKERS_MAX, Config, Engine, StaticInstance, Telemetry, load
from sidecar.config.keys import HttpTuning, Tuning
from sidecar.edge.run_dir import RunDir
from sidecar.errors import ConfigError
from sidecar.routing.instance import Connector, Instance, Role, TransferMode


def with_instances(*instances: StaticInstance) -> Config:
    return Config(instances=instances)


@pytest.mark.parametrize(
    ("listen", "expected"),
    [("0.0.0.0:1", ("0.0.0.0", 1)), ("[::1]:80", ("::1", 80)), ("name:9", ("name", 9))],
)
def test_host_port(listen: str, expected: tuple[str, int]) -> None:
    """IPv6 without its brackets: sockets and Envoy take it bare."""
    assert settings.host_port(listen) == expected


def test_workers_are_one_a_core_unless_said() -> None:
    """At least one, at most eight."""
    assert settings.workers_of(Config(workers=3)) == 3
    assert 1 <= settings.workers_of(Config()) <= WORKERS_MAX


def test_edge_settings_take_every_tuned_value() -> None:
    """Values that differ from every default arrive where they belong."""
    config = load(
        "edge: {listen: '1.2.3.4:5', access_log_path: /x}\n"
        "envoy: {admin_listen: '127.0.0.1:6'}\n"
        "workers: 2\n"
        "request: {upload_timeout_s: 7}\n"
        "decode: {headers_timeout_s: 8, idle_timeout_s: 9, whole_timeout_s: 10}\n"
        "tuning:\n"
        "  listener: {backlog: 11}\n"
        "  http: {idle_timeout_s: 12, max_body_bytes: 13}\n"
        "  upstream: {connect_timeout_s: 14, max_connections: 15, max_pending: 16}\n"
        "  access_log: {buffer_interval_ms: 17, report_interval_s: 18}\n",
        {},
        {},
    )
    made = settings.edge_settings(config, RunDir(Path("/r")))
    assert (made.listen_host, made.listen_port) == ("1.2.3.4", 5)
    assert (made.admin_host, made.admin_port, made.access_log_path) == ("127.0.0.1", 6, "/x")
    assert made.worker_sockets == ("/r/w0.sock", "/r/w1.sock")
    assert made.upload_timeout_s == 7
    assert (
        made.decode_headers_timeout_s,
        made.decode_idle_timeout_s,
        made.decode_whole_timeout_s,
    ) == (8, 9, 10)
    assert (made.listener_backlog, made.http_idle_timeout_s, made.max_body_bytes) == (11, 12, 13)
    assert (
        made.upstream_connect_timeout_s,
        made.upstream_max_connections,
        made.upstream_max_pending,
    ) == (14, 15, 16)
    assert made.access_log_buffer_interval_ms == 17
    assert made.access_log_report_interval_s == 18
    assert made.node_id == settings.node_id(RunDir(Path("/r")))


@pytest.mark.parametrize(
    ("listen", "connected"),
    [
        ("127.0.0.1:5", ("127.0.0.1", 5)),
        ("0.0.0.0:5", ("127.0.0.1", 5)),
        ("[::]:5", ("::1", 5)),
        ("10.0.0.1:5", ("10.0.0.1", 5)),
    ],
)
def test_edge_settings_take_who_may_call_and_where_profiling_is_asked_for(
    listen: str, connected: tuple[str, int]
) -> None:
    """What listens on every address is reached over loopback."""
    config = load(
        f"admin: {{listen: '{listen}'}}\n"
        "edge: {profile_routes: true, cors: {allow_origins: ['http://a.b'], max_age_s: 7}}\n",
        {},
        {},
    )
    made = settings.edge_settings(config, RunDir(Path("/r")))
    assert (made.cors_origins, made.cors_max_age_s) == (("http://a.b",), 7)
    assert made.profile_routes
    assert (made.profile_host, made.profile_port) == connected


def test_limits_carry_the_engines_key_without_its_newline(tmp_path: Path) -> None:
    """The file's content, stripped."""
    key = tmp_path / "key"
    key.write_text("secret\n")
    limits = settings.limits(
        Config(engine=Engine(api_key_file=str(key)), telemetry=Telemetry(show_addresses=True))
    )
    assert limits.engine_api_key == "secret"
    assert limits.shows_addresses
    assert settings.limits(Config()).engine_api_key is None


def test_a_key_file_that_cannot_be_used_is_a_fault_with_its_key(tmp_path: Path) -> None:
    """Missing, empty, or not one line of visible ASCII: engines would refuse every request."""
    bad = tmp_path / "bad"
    for content in (None, b"", b" \n", b"two\nlines", b"\xff"):
        if content is not None:
            bad.write_bytes(content)
        with pytest.raises(ConfigError) as caught:
            settings.api_key(Config(engine=Engine(api_key_file=str(bad))))
        assert caught.value.faults[0].startswith("engine.api_key_file: ")


def test_a_static_instance_is_what_it_would_have_registered() -> None:
    """With its KV address, or with its HTTP host for one."""
    full, bare = settings.static_instances(
        with_instances(
            StaticInstance(
                role="prefill",
                url="http://10.0.0.1:8000/v1",
                dp_size=4,
                transfer_mode="WRITE",
                zmq_address="host:10.0.0.9,handshake:6301,notify:61005",
            ),
            StaticInstance(role="decode", url="https://[fd00::1]:8443"),
        )
    )
    assert full == Instance(
        address="10.0.0.1:8000",
        role=Role.PREFILL,
        transfer_mode=TransferMode.WRITE,
        dp_size=4,
        kv_host="10.0.0.9",
        handshake_port=6301,
        notify_port=61005,
        is_static=True,
    )
    assert (bare.address, bare.scheme, bare.kv_host) == ("[fd00::1]:8443", "https", "fd00::1")


@pytest.mark.parametrize("named", [None, "nixl"])
def test_a_static_instance_has_the_pools_connector(named: str | None) -> None:
    """Said or not; of the KV addresses that MoRI-IO has there are none."""
    entry = StaticInstance(role="decode", url="http://a:1", dp_size=2, tp_size=2, connector=named)
    (one,) = settings.static_instances(Config(connector="nixl", instances=(entry,)))
    assert one == Instance(
        address="a:1",
        role=Role.DECODE,
        transfer_mode=TransferMode.READ,
        connector=Connector.NIXL,
        dp_size=2,
        tp_size=2,
        is_static=True,
    )


def test_every_static_instance_that_is_none_is_named() -> None:
    """By its place in the list."""
    with pytest.raises(ConfigError) as caught:
        settings.static_instances(
            with_instances(
                StaticInstance(role="decode", url="ftp://a:1"),
                StaticInstance(role="decode", url="http://a:1"),
                StaticInstance(role="decode", url="http://a"),
                StaticInstance(role="decode", url="http://a:1", zmq_address="garbage"),
                StaticInstance(role="prefill", url="http://a:1/v1"),
            )
        )
    assert [fault.partition(":")[0] for fault in caught.value.faults] == [
        "instances[0]",
        "instances[2]",
        "instances[3]",
        "instances[4]",
    ]


@pytest.mark.parametrize(("workers", "expected"), [(1, 1 << 30), (4, 1 << 28), (8, 200 << 20)])
def test_a_workers_share_of_bodies_is_never_below_one_body(workers: int, expected: int) -> None:
    """Else a large one would be refused whenever there is another."""
    http = HttpTuning(max_body_bytes=200 << 20, max_body_bytes_in_flight=1 << 30)
    config = Config(workers=workers, tuning=Tuning(http=http))
    assert settings.body_budget_bytes(config) == expected
