"""The configuration: file, environment and flags, and every fault at once with its key."""

from typing import Any

import msgspec
import pytest

from sidecar.config import Config, StaticInstance, load, port_of
from sidecar.errors import ConfigError


def loaded(text: str = "", *, flags: dict[str, object] | None = None, **environment: str) -> Config:
    return load(text, {f"PD_SIDECAR__{k}": v for k, v in environment.items()}, flags or {})


def faults(text: str = "", *, flags: dict[str, object] | None = None, **env: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        loaded(text, flags=flags, **env)
    return caught.value.faults


@pytest.mark.parametrize(
    "text", ["", "  \n", "# nothing but a comment\n", "---\n", "{}", "edge:\ntuning: {http: }\n"]
)
def test_nothing_said_is_the_defaults(text: str) -> None:
    """An empty file, comments alone and empty sections."""
    assert loaded(text) == Config()


def test_the_defaults_are_valid_and_survive_the_hop_to_the_children() -> None:
    """The supervisor hands it on as JSON."""
    config = loaded()
    assert msgspec.json.decode(msgspec.json.encode(config), type=Config) == config


def test_flags_beat_the_environment_beats_the_file() -> None:
    """And what is not said lower down stays."""
    text = "workers: 1\nprobe: {interval_s: 3, timeout_s: 0.5}\n"
    config = loaded(text, PROBE__INTERVAL_S="4", WORKERS="2", flags={"workers": 3, "run_dir": None})
    assert config.workers == 3
    assert (config.probe.interval_s, config.probe.timeout_s) == (4, 0.5)
    assert config.run_dir is None
    assert loaded(text, flags={"probe.interval_s": 7}).probe.interval_s == 7


def test_an_empty_section_in_the_file_takes_keys_from_the_environment() -> None:
    """`edge:` alone is a section like another."""
    assert loaded("edge:\n", EDGE__LISTEN="1.2.3.4:5").edge.listen == "1.2.3.4:5"


@pytest.mark.parametrize(
    ("name", "value", "read", "expected"),
    [
        ("RUN_DIR", "123", lambda c: c.run_dir, "123"),
        ("RUN_DIR", "null", lambda c: c.run_dir, None),
        ("RUN_DIR", "", lambda c: c.run_dir, None),
        ("RUN_DIR", "yes", lambda c: c.run_dir, "yes"),
        ("RUN_DIR", "a: b", lambda c: c.run_dir, "a: b"),
        ("WORKERS", "2", lambda c: c.workers, 2),
        ("DRAIN__NOTICE_S", "1.5", lambda c: c.drain.notice_s, 1.5),
        ("TELEMETRY__SHOW_ADDRESSES", "true", lambda c: c.telemetry.show_addresses, True),
        ("REGISTRATION__ALLOW", "[10.0.0.0/8]", lambda c: c.registration.allow, ("10.0.0.0/8",)),
        ("TUNING__HTTP__MAX_BODY_BYTES", "7", lambda c: c.tuning.http.max_body_bytes, 7),
        (
            "INSTANCES",
            "[{role: decode, url: 'http://a:1'}]",
            lambda c: c.instances,
            (StaticInstance(role="decode", url="http://a:1"),),
        ),
    ],
)
def test_environment_values_are_read_by_the_type_of_their_key(
    name: str, value: str, read: Any, expected: object
) -> None:
    """Text stays text even where YAML would see a number or a truth value."""
    assert read(loaded(**{name: value})) == expected


def test_every_fault_is_told_at_once_with_its_key() -> None:
    """Unknown keys, wrong types, ranges, addresses, instances: one run of `check` is enough."""
    found = faults(
        "edge: {listen: nowhere, port: 1}\n"
        "workers: many\n"
        "telemetry: {route_headers: 1}\n"
        "decode: []\n"
        "prefill: {attempts: 0}\n"
        "registration: {allow: [10.0.0.0/8, garbage]}\n"
        "instances: [{role: both, url: http://a:1}, {dp_size: 0}, 5]\n"
        "nonsense: {a: 1}\n",
        PROBE__TIMEOUT_S="soon",
        NO__SUCH="1",
        flags={"drain.timeout_s": -1},
    )
    keys = sorted(fault.partition(":")[0] for fault in found)
    assert keys == sorted(
        [
            "edge.listen",
            "edge.port",
            "workers",
            "telemetry.route_headers",
            "decode",
            "prefill.attempts",
            "registration.allow",
            "instances[0].role",
            "instances[1].role",
            "instances[1].url",
            "instances[2]",
            "instances[2].role",
            "instances[2].url",
            "nonsense",
            "probe.timeout_s",
            "no",
            "drain.timeout_s",
        ]
    )


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("workers: null", "workers: expected a whole number, got None"),
        ("workers: true", "workers: expected a whole number, got True"),
        ("workers: 1.5", "workers: expected a whole number, got 1.5"),
        ("run_dir: 5", "run_dir: expected text or null, got 5"),
        ("probe: {interval_s: x}", "probe.interval_s: expected a number, got 'x'"),
        ("registration: {allow: a}", "registration.allow: expected a list of text, got 'a'"),
        ("telemetry: {route_headers: 'no'}", "telemetry.route_headers: expected true or false"),
        ("edge: 5", "edge: expected a map of keys, got 5"),
        ("instances: 5", "instances: expected a list of instances, got 5"),
        (
            "instances: [{role: x, url: 'http://a:1'}]",
            "instances[0].role: expected one of prefill, decode, got 'x'",
        ),
        ("probe: {interval_s: .nan}", "probe.interval_s: nan is not between"),
        ("drain: {timeout_s: .inf}", "drain.timeout_s: inf is not between"),
        ("1: 2", "1: unknown key"),
        ("- a", "the configuration must be a map of sections"),
        ("text", "the configuration must be a map of sections"),
        ("a: [", "the configuration is not YAML: "),
    ],
)
def test_a_fault_says_what_was_expected(text: str, fault: str) -> None:
    """In words, with the value that was found."""
    (found,) = faults(text)
    assert found.startswith(fault)


def test_a_key_below_a_value_is_no_section() -> None:
    """`PD_SIDECAR__WORKERS__MORE` names nothing."""
    (found,) = faults("workers: 1", WORKERS__MORE="1")
    assert found == "workers.more: workers is not a section"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("decode: {headers_timeout_s: 100, idle_timeout_s: 99}", "decode.idle_timeout_s"),
        ("instances: [{role: prefill, url: 'http://a:1', dp_size: 2, tp_size: 2}]", "instances[0]"),
        (
            "tuning: {access_log: {buffer_interval_ms: 1001, report_interval_s: 1}}",
            "tuning.access_log.buffer_interval_ms",
        ),
        ("ejection: {backoff_s: 10, backoff_max_s: 9}", "ejection.backoff_max_s"),
        ("observe: {listen: '1.1.1.1:5'}\nadmin: {listen: '1.1.1.1:5'}", "admin.listen"),
    ],
)
def test_what_two_keys_say_together_is_checked(text: str, key: str) -> None:
    """Each alone is right."""
    (found,) = faults(text)
    assert found.startswith(f"{key}: ")


NIXL = """
connector: nixl
instances:
  - {role: prefill, url: 'http://a:1'}
  - {role: decode, url: 'http://b:1', dp_size: 2, tp_size: 2, transfer_mode: READ, connector: nixl}
"""


def test_a_pool_of_nixl_is_named_whole_in_the_configuration() -> None:
    """Role and URL are enough, and ranks with tensor parallelism are no fault there."""
    config = loaded(NIXL)
    assert (config.connector, len(config.instances)) == ("nixl", 2)
    assert loaded(CONNECTOR="nixl").connector == "nixl"
    assert loaded().connector == "moriio"


@pytest.mark.parametrize(
    ("pool", "instance", "expected"),
    [
        (
            "nixl",
            "connector: moriio",
            "instances[1].connector: moriio in a pool of connector nixl: one pool has one "
            "connector; run a second router for the others",
        ),
        (
            "moriio",
            "connector: nixl",
            "instances[1].connector: nixl in a pool of connector moriio: one pool has one "
            "connector; run a second router for the others",
        ),
        ("nixl", "transfer_mode: WRITE", "instances[1].transfer_mode: WRITE is MoRI-IO's; "),
        (
            "nixl",
            "zmq_address: 'host:a,handshake:1,notify:2'",
            "instances[1].zmq_address: is MoRI-IO's; ",
        ),
        ("nixl", "connector: NIXL", "instances[1].connector: expected one of moriio, nixl or null"),
    ],
)
def test_what_does_not_go_with_the_pools_connector_is_a_fault(
    pool: str, instance: str, expected: str
) -> None:
    """It says whose it is, and the way out."""
    first = "{role: prefill, url: 'http://a:1'}"
    text = f"connector: {pool}\ninstances: [{first}, {{role: decode, url: 'http://b:1', %s}}]"
    (found,) = faults(text % instance)
    assert found.startswith(expected)
    assert loaded(text % "models: []")


def test_notices_are_not_for_nixl() -> None:
    """They would go to ports that its engines do not have."""
    (found,) = faults("connector: nixl\nengine: {release_kv: true}")
    assert found.startswith("engine.release_kv: notices are MoRI-IO's; ")
    assert loaded("engine: {release_kv: true}").engine.release_kv


def test_a_connector_that_is_none_is_a_fault() -> None:
    """Spelt as the key's values are."""
    (found,) = faults("connector: mooncake")
    assert found == "connector: expected one of moriio, nixl, got 'mooncake'"


@pytest.mark.parametrize(
    "origin",
    ["*", "https://chat.example.com", "http://localhost:3000", "http://127.0.0.1", "http://[::1]:80",
     "chrome-extension://abcdef", "app://obsidian.md"],
)  # fmt: skip
def test_an_origin_as_browsers_write_it_is_taken(origin: str) -> None:
    """Scheme, host and perhaps a port."""
    config = loaded(f"edge: {{cors: {{allow_origins: ['{origin}']}}}}")
    assert config.edge.cors.allow_origins == (origin,)


@pytest.mark.parametrize(
    "origin",
    ["https://a.com/", "https://A.com", "a.com", "https://*.a.com", "null", "", "https://a.com:x",
     "https://a.com, https://b.com"],
)  # fmt: skip
def test_an_origin_that_would_never_match_is_a_fault(origin: str) -> None:
    """It is compared byte by byte with what a browser sends."""
    (found,) = faults(f"edge: {{cors: {{allow_origins: ['{origin}']}}}}")
    assert found.startswith("edge.cors.allow_origins: ")


@pytest.mark.parametrize(
    ("heap", "is_good"), [(0, True), (1, False), (64 << 20, True), (-1, False)]
)
def test_envoys_heap_is_large_enough_to_start_in(heap: int, is_good: bool) -> None:
    """Or 0: by what the machine has."""
    text = f"envoy: {{max_heap_bytes: {heap}}}"
    if is_good:
        assert loaded(text).envoy.max_heap_bytes == heap
    else:
        assert faults(text)[0].startswith("envoy.max_heap_bytes: ")


def test_profiling_needs_an_address_of_the_admin() -> None:
    """Envoy does not look names up here."""
    text = "admin: {listen: 'localhost:9900'}\nedge: {profile_routes: %s}"
    (found,) = faults(text % "true")
    assert found.startswith("edge.profile_routes: ")
    assert loaded(text % "false").admin.listen == "localhost:9900"
    assert loaded("admin: {listen: '[::]:9900'}\nedge: {profile_routes: true}")


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ("failures: 0", "ejection.failures"),
        ("backoff_s: -1", "ejection.backoff_s"),
        ("backoff_s: 0, backoff_max_s: 86401", "ejection.backoff_max_s"),
    ],
)
def test_the_limits_of_ejection(values: str, key: str) -> None:
    """At least one failure, and times that are times; a back-off of 0 is a choice."""
    (found,) = faults(f"ejection: {{{values}}}")
    assert found.startswith(f"{key}: ")
    assert loaded("ejection: {backoff_s: 0}").ejection.backoff_s == 0


def test_the_prefill_limit_stays_below_envoys_own() -> None:
    """At most an hour less a little (design §2): the worker must end prefill before Envoy does."""
    (found,) = faults("prefill: {timeout_s: 3601}")
    assert found.startswith("prefill.timeout_s: ")


@pytest.mark.parametrize(
    ("listen", "port"),
    [
        ("0.0.0.0:10001", 10001),
        ("[::]:80", 80),
        ("host:0", 0),
        (":80", None),
        ("80", None),
        ("a:", None),
        ("a:65536", None),
        ("a:x", None),
        ("a:-1", None),
    ],
)
def test_port_of(listen: str, port: int | None) -> None:
    """The last colon parts host and port; both must be there."""
    assert port_of(listen) == port
