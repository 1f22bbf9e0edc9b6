"""Access log entries against the real protobuf classes, and the trail that comes back in them."""

import pytest
from envoy.data.accesslog.v3 import accesslog_pb2 as al
from envoy.service.accesslog.v3 import als_pb2
from hypothesis import given
from hypothesis import strategies as st

from sidecar.errors import RemoteError
from sidecar.routing.instance import TransferMode
from sidecar.routing.slots import Slot
from sidecar.wire.access_log import Attempt, Entry, Trail, decode, decode_trail, encode_trail

slots = st.builds(Slot, st.text(max_size=20), st.integers(0, 64))
trails = st.builds(
    Trail,
    worker=st.integers(0, 8),
    api=st.text(max_size=10),
    model=st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    is_streaming=st.booleans(),
    mode=st.sampled_from([*TransferMode, None]),
    prefill=st.none() | slots,
    decode=st.none() | slots,
)


@given(trails)
def test_a_trail_survives_its_way_through_envoy(trail: Trail) -> None:
    """Text in, the same values out."""
    assert decode_trail(encode_trail(trail)) == trail


@given(st.text())
def test_what_is_no_trail_is_none(text: str) -> None:
    """Another version's or garbage is no error: the entry still ends its exchange."""
    assert decode_trail(text) is None


def logged(**tags: str) -> al.HTTPAccessLogEntry:
    entry = al.HTTPAccessLogEntry()
    entry.common_properties.custom_tags.update(tags)
    return entry


def read(entry: al.HTTPAccessLogEntry) -> Entry:
    message = als_pb2.StreamAccessLogsMessage()
    message.http_logs.log_entry.append(entry)
    (one,) = decode(message.SerializeToString())
    assert isinstance(one, Entry)
    return one


def test_a_whole_entry() -> None:
    """Every field that the ledger and the metrics use."""
    trail = Trail(
        worker=1,
        api="messages",
        model="m",
        is_streaming=True,
        mode=TransferMode.WRITE,
        prefill=Slot("p", 0),
        decode=Slot("d", 1),
    )
    entry = logged(
        ex="e1", rec=encode_trail(trail), reply="draining", total_us="1500000", ttfb_us="250000"
    )
    entry.common_properties.access_log_type = al.DownstreamEnd
    entry.common_properties.response_flags.upstream_connection_failure = True
    entry.common_properties.response_flags.downstream_remote_reset = True
    address = entry.common_properties.upstream_remote_address.socket_address
    address.address, address.port_value = "fd00::1", 8000
    entry.response.response_code.value = 503
    assert read(entry) == Entry(
        exchange="e1",
        is_end=True,
        status=503,
        flags=frozenset({"UF", "DR"}),
        upstream="[fd00::1]:8000",
        trail=trail,
        reply="draining",
        total_s=1.5,
        first_byte_s=0.25,
    )


def test_what_is_missing_is_empty() -> None:
    """Envoy writes `-` for metadata that nobody set."""
    assert read(logged(ex="-", rec="-", reply="-", total_us="-", ttfb_us="")) == Entry(
        exchange="",
        is_end=True,
        status=0,
        flags=frozenset(),
        upstream="",
        trail=None,
        reply="",
        total_s=None,
        first_byte_s=None,
    )


@pytest.mark.parametrize(
    ("kind", "is_end"),
    [
        (al.NotSet, True),
        (al.DownstreamEnd, True),
        (al.DownstreamStart, False),
        (al.DownstreamPeriodic, False),
        (al.UpstreamPoolReady, False),
    ],
)
def test_only_the_streams_own_end_is_an_end(kind: int, is_end: bool) -> None:
    """A report of an open stream, or of an upstream attempt, ends nothing."""
    entry = logged(ex="e")
    entry.common_properties.access_log_type = kind
    assert read(entry).is_end is is_end


def test_every_flag_has_envoys_short_name() -> None:
    """No field of the real message is without one."""
    entry = logged()
    flags = entry.common_properties.response_flags
    for field in flags.DESCRIPTOR.fields:
        if field.message_type is not None:
            getattr(flags, field.name).SetInParent()
        else:
            setattr(flags, field.name, True)
    names = read(entry).flags
    assert len(names) == len(flags.DESCRIPTOR.fields)
    assert all(name.isupper() for name in names)


def test_several_entries_come_in_order_and_tcp_entries_are_none() -> None:
    """One message carries what one buffer interval gathered."""
    message = als_pb2.StreamAccessLogsMessage()
    message.http_logs.log_entry.extend([logged(ex="a"), logged(ex="b")])
    assert [e.exchange for e in decode(message.SerializeToString())] == ["a", "b"]
    tcp = als_pb2.StreamAccessLogsMessage()
    tcp.tcp_logs.log_entry.add()
    assert decode(tcp.SerializeToString()) == []


@given(st.binary(max_size=60))
def test_garbage_is_a_remote_error_or_entries(data: bytes) -> None:
    """No other exception leaves the codec."""
    try:
        decode(data)
    except RemoteError:
        return


def test_a_failed_attempt_is_no_entry_of_an_exchange() -> None:
    """The router's `upstream_log` on the same service: told apart by its type, whatever else it
    has; with the host, the flags, Envoy's words and the attempt's own duration."""
    entry = logged(ex="e1")
    common = entry.common_properties
    common.access_log_type = al.UpstreamEnd
    common.response_flags.upstream_connection_failure = True
    common.upstream_remote_address.socket_address.address = "10.0.0.1"
    common.upstream_remote_address.socket_address.port_value = 8000
    common.upstream_transport_failure_reason = "delayed connect error: Connection refused"
    common.duration.FromMicroseconds(1_500_000)
    message = als_pb2.StreamAccessLogsMessage()
    message.http_logs.log_entry.extend([entry, logged(ex="e2")])
    attempt, end = decode(message.SerializeToString())
    assert attempt == Attempt(
        upstream="10.0.0.1:8000",
        flags=frozenset({"UF"}),
        failure="delayed connect error: Connection refused",
        took_s=1.5,
    )
    assert isinstance(end, Entry)
    assert end.exchange == "e2"


def test_an_entry_knows_how_long_its_request_has_lasted() -> None:
    """Also where the answer's own times are missing, as in one that was cut."""
    entry = logged(ex="e1", total_us="-")
    entry.common_properties.duration.FromMicroseconds(2_000_000)
    one = read(entry)
    assert (one.total_s, one.lasted_s) == (None, 2.0)
