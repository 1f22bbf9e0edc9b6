"""Every registration shape that engines send (protocol a), and everything that is none."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidecar.errors import HeartbeatError
from sidecar.routing.instance import Instance, Role, TransferMode
from sidecar.wire.heartbeat import (
    MAX_PAYLOAD_BYTES,
    REASONS,
    host_differs,
    parse_heartbeat,
    parse_zmq_address,
)

SHAPE_A = {
    "type": "register",
    "role": "P",
    "index": "17",
    "request_address": "http://10.0.0.1:8000/v1/completions",
    "handshake_port": 6301,
    "notify_port": 61005,
    "dp_size": 1,
    "tp_size": 8,
    "transfer_mode": "READ",
}
SHAPE_B = {
    "type": "D",
    "http_address": "10.0.0.2:8100",
    "zmq_address": "host:10.0.0.2,handshake:6301,notify:61005",
    "dp_size": 8,
    "tp_size": 1,
    "transfer_mode": "WRITE",
}
INSTANCE_A = Instance(
    address="10.0.0.1:8000",
    role=Role.PREFILL,
    transfer_mode=TransferMode.READ,
    tp_size=8,
    kv_host="10.0.0.1",
    handshake_port=6301,
    notify_port=61005,
)
INSTANCE_B = Instance(
    address="10.0.0.2:8100",
    role=Role.DECODE,
    transfer_mode=TransferMode.WRITE,
    dp_size=8,
    kv_host="10.0.0.2",
    handshake_port=6301,
    notify_port=61005,
)


def heard(record: Any, **changes: Any) -> Instance | None:
    """What a record gives, with some keys changed (None: left out)."""
    if isinstance(record, dict):
        record = {k: v for k, v in {**record, **changes}.items() if v is not None}
    return parse_heartbeat([b"\x00id", msgspec.msgpack.encode(record)])


def refused(record: Any, **changes: Any) -> HeartbeatError:
    with pytest.raises(HeartbeatError) as caught:
        heard(record, **changes)
    return caught.value


def test_shape_a() -> None:
    assert heard(SHAPE_A) == INSTANCE_A


def test_shape_a_prime_has_another_path() -> None:
    assert heard(SHAPE_A, request_address="http://10.0.0.1:8000/v1") == INSTANCE_A


def test_the_counter_of_shape_a_changes_nothing() -> None:
    assert heard(SHAPE_A, index="18") == heard(SHAPE_A, index=None) == INSTANCE_A


def test_shape_a0_has_one_rank_and_writes() -> None:
    instance = heard(SHAPE_A, dp_size=None, tp_size=None, transfer_mode=None)
    assert instance is not None
    assert (instance.dp_size, instance.tp_size) == (1, 1)
    assert instance.transfer_mode is TransferMode.WRITE


def test_shape_b() -> None:
    assert heard(SHAPE_B) == INSTANCE_B


def test_later_keys_are_ignored() -> None:
    assert heard(SHAPE_B, kv_role="kv_both", node_hosts=["10.0.0.2"]) == INSTANCE_B


def test_hello_is_tolerated() -> None:
    assert heard({"type": "HELLO"}) is None


def test_p2p_nccl_is_refused_by_its_name() -> None:
    fault = refused({"type": "P", "http_address": "10.0.0.1:8000", "zmq_address": "10.0.0.1:21001"})
    assert fault.reason == "shape"
    assert "P2pNccl" in fault.detail


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("10.0.0.1:8000", "10.0.0.1:8000"),
        ("http://10.0.0.1:8000", "10.0.0.1:8000"),
        ("fe80::1:8000", "[fe80::1]:8000"),
        ("[fe80::1]:8000", "[fe80::1]:8000"),
        ("2001:DB8:0:0:0:0:0:1:80", "[2001:db8::1]:80"),
        ("::ffff:10.0.0.1:80", "10.0.0.1:80"),
        ("Engine-1.Pool.svc:80", "engine-1.pool.svc:80"),
        ("prefill_1:80", "prefill_1:80"),
    ],
)
def test_one_spelling_for_each_address(text: str, address: str) -> None:
    instance = heard(SHAPE_B, http_address=text)
    assert instance is not None
    assert instance.address == address
    assert instance.base_url == f"http://{address}/v1"


def test_https_is_kept() -> None:
    instance = heard(SHAPE_A, request_address="https://10.0.0.1:443/v1")
    assert instance is not None
    assert instance.base_url == "https://10.0.0.1:443/v1"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "10.0.0.1",
        "10.0.0.1:",
        "10.0.0.1:0",
        "10.0.0.1:65536",
        "10.0.0.1:80x",
        "10.0.0.1:-1",
        "10.0.0.1:８０",
        ":8000",
        "::1",
        "a b:80",
        "a,b:80",
        "a\n:80",
        "a\x00:80",
        "user@host:80",
        "fe80::1%eth0:80",
        "0.0.0.0:80",
        ":::80",
        "224.0.0.1:80",
        "300.0.0.1:80",
        "10.1:80",
        "a..b:80",
        "-a:80",
        "x" * 254 + ":80",
        "ftp://10.0.0.1:80",
        "http://",
        "http:///v1",
    ],
)
def test_what_cannot_be_an_address_is_refused_as_such(text: str) -> None:
    assert refused(SHAPE_B, http_address=text).reason == "address"
    if "://" not in text:
        assert refused(SHAPE_A, request_address=f"http://{text}/v1").reason == "address"


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("host:10.0.0.1,handshake:1,notify:2", ("10.0.0.1", 1, 2)),
        ("host:fe80::1,handshake:1,notify:2", ("fe80::1", 1, 2)),
        ("notify:2,more:a:b,host:h,handshake:1", ("h", 1, 2)),
    ],
)
def test_zmq_address_splits_at_commas_then_at_first_colons(text: str, parsed: tuple) -> None:
    assert parse_zmq_address(text) == parsed


@pytest.mark.parametrize(
    "text", ["host:h", "host:,handshake:1,notify:2", "host:h,handshake:x,notify:2", "host,notify"]
)
def test_a_broken_zmq_address_is_refused(text: str) -> None:
    assert refused(SHAPE_B, zmq_address=text).reason == "address"


@pytest.mark.parametrize("shape", [SHAPE_A, SHAPE_B], ids=["A", "B"])
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"dp_size": None}, "shape"),
        ({"transfer_mode": None}, "shape"),
        ({"dp_size": True}, "type"),
        ({"dp_size": "8"}, "type"),
        ({"dp_size": 1.0}, "type"),
        ({"dp_size": 0}, "value"),
        ({"dp_size": 4097}, "value"),
        ({"tp_size": -1}, "value"),
        ({"tp_size": 2**63}, "value"),
        ({"transfer_mode": "PUSH"}, "value"),
        ({"transfer_mode": 1}, "type"),
        ({"type": "X"}, "shape"),
        ({"type": ["P"]}, "shape"),
        ({"type": None}, "shape"),
    ],
)
def test_each_fault_has_its_reason(shape: dict, changes: dict, reason: str) -> None:
    assert refused(shape, **changes).reason == reason


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"role": "B"}, "value"),
        ({"role": None}, "shape"),
        ({"handshake_port": 0}, "value"),
        ({"notify_port": 70000}, "value"),
        ({"notify_port": False}, "type"),
        ({"notify_port": "x"}, "value"),
        ({"request_address": 5}, "type"),
    ],
)
def test_faults_of_shape_a(changes: dict, reason: str) -> None:
    assert refused(SHAPE_A, **changes).reason == reason


def test_a_port_may_be_text_as_the_engine_was_configured() -> None:
    assert heard(SHAPE_A, handshake_port="6301") == INSTANCE_A


@pytest.mark.parametrize("count", [0, 1, 3, 9])
def test_only_two_frames_are_a_message(count: int) -> None:
    with pytest.raises(HeartbeatError) as caught:
        parse_heartbeat([msgspec.msgpack.encode(SHAPE_A)] * count)
    assert caught.value.reason == "frames"


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "msgpack"),
        (b"\xc1", "msgpack"),
        (b"\x91" * 10_000, "shape"),
        (b"\x81\xa1a" + b"\x91" * 10_000, "msgpack"),
        (b"\x81\xa2\xff\xfe\x01", "msgpack"),
        (b"\x93\x01\x02\x03", "shape"),
        (b"\x81\x01\x02", "shape"),
        (b"\x80", "shape"),
        (b"HELLO", "shape"),
        (b"x" * (MAX_PAYLOAD_BYTES + 1), "size"),
    ],
)
def test_bytes_that_are_no_record(payload: bytes, reason: str) -> None:
    with pytest.raises(HeartbeatError) as caught:
        parse_heartbeat([b"id", payload])
    assert caught.value.reason == reason


def outcome(frames: list[bytes]) -> Instance | HeartbeatError | None:
    try:
        return parse_heartbeat(frames)
    except HeartbeatError as fault:
        return fault


def survives(frames: list[bytes]) -> None:
    result = outcome(frames)
    if isinstance(result, HeartbeatError):
        assert result.reason in REASONS
        assert len(result.detail) < 1000
        assert result.detail.isprintable()
    else:
        assert result is None or isinstance(result, Instance)


@given(st.lists(st.binary(max_size=200), max_size=4))
def test_any_bytes_give_an_instance_or_a_heartbeat_error(frames: list[bytes]) -> None:
    survives(frames)


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=30)
    | st.binary(max_size=10)
    | st.datetimes(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@settings(max_examples=400)
@given(
    base=st.sampled_from([SHAPE_A, SHAPE_B]),
    changes=st.dictionaries(st.sampled_from(sorted({*SHAPE_A, *SHAPE_B})), VALUES),
)
def test_any_values_give_an_instance_or_a_heartbeat_error(base: dict, changes: dict) -> None:
    survives([b"id", msgspec.msgpack.encode({**base, **changes})])


@settings(max_examples=300)
@given(base=st.sampled_from([SHAPE_A, SHAPE_B]), data=st.data())
def test_a_record_with_broken_bytes_gives_an_instance_or_a_heartbeat_error(
    base: dict, data: st.DataObject
) -> None:
    payload = bytearray(msgspec.msgpack.encode(base))
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    survives([b"id", bytes(payload[: data.draw(st.integers(0, len(payload)))])])


@given(st.text(max_size=60))
def test_any_address_text_gives_a_normal_address_or_a_heartbeat_error(text: str) -> None:
    result = outcome([b"id", msgspec.msgpack.encode({**SHAPE_B, "http_address": text})])
    if isinstance(result, HeartbeatError):
        assert result.reason == "address"
    else:
        assert result is not None
        assert heard(SHAPE_B, http_address=result.address) == result


@pytest.mark.parametrize(
    ("address", "sender", "differs"),
    [
        ("10.0.0.1:80", "10.0.0.1", False),
        ("10.0.0.1:80", "::ffff:10.0.0.1", False),
        ("10.0.0.1:80", "10.0.0.2", True),
        ("[fe80::1]:80", "fe80::1", False),
        ("engine:80", "10.0.0.2", False),
        ("10.0.0.1:80", "", False),
    ],
)
def test_a_sender_elsewhere_is_noticed(address: str, sender: str, differs: bool) -> None:
    instance = msgspec.structs.replace(INSTANCE_A, address=address)
    assert host_differs(instance, sender) is differs
