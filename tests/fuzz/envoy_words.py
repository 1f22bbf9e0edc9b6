"""What Envoy says: messages of external processing and of the access log."""

from envoy.data.accesslog.v3 import accesslog_pb2
from envoy.service.accesslog.v3 import als_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb

from sidecar.errors import RemoteError
from sidecar.exchange.body_budget import BodyBudget
from sidecar.exchange.machine import Exchange
from sidecar.exchange.phase import Phase
from sidecar.exchange.situation import Limits
from sidecar.routing.instance import TransferMode
from sidecar.routing.slots import Slot
from sidecar.wire import access_log, ext_proc
from tests.exchange.exchange_driver import ID, READY


def check_ext_proc(data: bytes) -> None:
    """A value or RemoteError; what is the start of a request then begins an exchange."""
    try:
        message = ext_proc.decode(data)
    except RemoteError:
        return
    assert isinstance(message, ext_proc.Message)
    if isinstance(message, ext_proc.RequestHeaders):
        exchange = Exchange(ID, 0, READY, Limits(), BodyBudget(1 << 20))
        effects = exchange.handle(message, 0.0)
        assert effects
        assert exchange.phase is not Phase.HEADERS
        for effect in effects:
            reply = getattr(effect, "reply", None)
            if reply is not None:
                ext_proc.encode(reply)


def check_access_log(data: bytes) -> None:
    """Values or RemoteError."""
    try:
        entries = access_log.decode(data)
    except RemoteError:
        return
    for entry in entries:
        assert isinstance(entry, access_log.Entry | access_log.Attempt)
        if isinstance(entry, access_log.Entry):
            assert isinstance(entry.is_engines, bool)
            for seconds in (entry.total_s, entry.first_byte_s):
                assert seconds is None or seconds >= 0.0


def check_trail(data: bytes) -> None:
    """The trail inside an entry, which protobuf gives as text."""
    text = data.decode("utf-8", "ignore")
    trail = access_log.decode_trail(text)
    if trail is not None:
        assert access_log.decode_trail(access_log.encode_trail(trail)) == trail


def ext_proc_seeds() -> tuple[bytes, ...]:
    headers, body, answer = pb.ProcessingRequest(), pb.ProcessingRequest(), pb.ProcessingRequest()
    for name, value in {":method": "POST", ":path": "/v1/completions", "host": "h"}.items():
        header = headers.request_headers.headers.headers.add(key=name)
        header.raw_value = value.encode()
    body.request_body.body = b'{"model":"m","prompt":"hi"}'
    body.request_body.end_of_stream = True
    status = answer.response_headers.headers.headers.add(key=":status")
    status.raw_value = b"200"
    trailers = pb.ProcessingRequest(request_trailers=pb.HttpTrailers())
    return tuple(m.SerializeToString() for m in (headers, body, answer, trailers))


def access_log_seeds() -> tuple[bytes, ...]:
    end, failed = accesslog_pb2.HTTPAccessLogEntry(), accesslog_pb2.HTTPAccessLogEntry()
    end.common_properties.access_log_type = accesslog_pb2.DownstreamEnd
    tags = {"ex": ID, "reply": "-", "total_us": "1200", "ttfb_us": "-"}
    tags["rec"] = trail_seeds()[0].decode()
    end.common_properties.custom_tags.update(tags)
    end.common_properties.duration.seconds = 3
    end.response.response_code.value = 200
    end.response.response_code_details = "via_upstream"
    failed.common_properties.access_log_type = accesslog_pb2.UpstreamEnd
    failed.common_properties.upstream_remote_address.socket_address.address = "::1"
    failed.common_properties.upstream_remote_address.socket_address.port_value = 80
    failed.common_properties.response_flags.upstream_connection_failure = True
    messages = []
    for entries in ([end], [failed], [end, failed]):
        message = als_pb2.StreamAccessLogsMessage()
        message.http_logs.log_entry.extend(entries)
        messages.append(message.SerializeToString())
    return tuple(messages)


def trail_seeds() -> tuple[bytes, ...]:
    trail = access_log.Trail(
        worker=0,
        api="messages",
        model="m",
        is_streaming=True,
        mode=TransferMode.WRITE,
        prefill=Slot("10.0.0.1:80", 1),
        decode=None,
    )
    text = access_log.encode_trail(trail).encode()
    return (text, text[:-1] + b",[[1]]]")
