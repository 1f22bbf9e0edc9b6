"""ext_proc messages against the real protobuf classes."""

import pytest
from envoy.config.core.v3 import base_pb2
from envoy.extensions.filters.http.ext_proc.v3.processing_mode_pb2 import ProcessingMode
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from google.protobuf import json_format
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from sidecar.errors import RemoteError
from sidecar.wire.ext_proc import (
    STRIPPED,
    BodyReply,
    HeadersReply,
    ImmediateReply,
    PassReply,
    RequestBody,
    RequestHeaders,
    ResponseHeaders,
    Unexpected,
    decode,
    encode,
)


def http_headers(*headers: tuple[str, bytes], is_last: bool = False) -> pb.HttpHeaders:
    message = pb.HttpHeaders(end_of_stream=is_last)
    for key, value in headers:
        message.headers.headers.append(base_pb2.HeaderValue(key=key, raw_value=value))
    return message


def response(reply: object) -> pb.ProcessingResponse:
    return pb.ProcessingResponse.FromString(b"".join(encode(reply)))


def mutated(mutation: pb.HeaderMutation) -> dict[str, str]:
    """The headers set; each must overwrite, or a client could add a second value."""
    overwrite = base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
    assert all(option.append_action == overwrite for option in mutation.set_headers)
    return {o.header.key: o.header.raw_value.decode() for o in mutation.set_headers}


def metadata(message: pb.ProcessingResponse) -> object:
    return json_format.MessageToDict(message.dynamic_metadata)


def test_request_headers() -> None:
    """Names, values and the end of the stream; a repeated header is one, with commas."""
    request = pb.ProcessingRequest(
        request_headers=http_headers(
            (":method", b"POST"), (":path", b"/v1/x"), ("a", b"1"), ("a", b"\xe4"), is_last=True
        )
    )
    message = decode(request.SerializeToString())
    expected = {":method": "POST", ":path": "/v1/x", "a": "1,\xe4"}
    assert message == RequestHeaders(expected, True)
    assert isinstance(message, RequestHeaders)
    assert (message.method, message.path) == ("POST", "/v1/x")


def test_headers_in_the_text_field_are_read_too() -> None:
    """Envoy fills `value` or `raw_value`, by a runtime switch."""
    request = pb.ProcessingRequest()
    header = request.request_headers.headers.headers.add()
    header.key, header.value = ":path", "/x"
    message = decode(request.SerializeToString())
    assert isinstance(message, RequestHeaders)
    assert (message.path, message.method) == ("/x", "")


def test_request_body() -> None:
    """The bytes as they are."""
    request = pb.ProcessingRequest(request_body=pb.HttpBody(body=b"\x00\xff", end_of_stream=True))
    assert decode(request.SerializeToString()) == RequestBody(b"\x00\xff")


@pytest.mark.parametrize(
    ("headers", "status"),
    [([(":status", b"404")], 404), ([("x", b"1")], 0), ([(":status", b"\xb2\xb2")], 0)],
)
def test_response_headers(headers: list[tuple[str, bytes]], status: int) -> None:
    """The status alone; 0 where there is none, which is not 2xx."""
    request = pb.ProcessingRequest(response_headers=http_headers(*headers))
    assert decode(request.SerializeToString()) == ResponseHeaders(status)


@pytest.mark.parametrize("kind", ["response_body", "request_trailers", "response_trailers"])
def test_a_message_that_was_not_asked_for_says_what_it_is(kind: str) -> None:
    """The machine refuses it; the log names it."""
    request = pb.ProcessingRequest()
    getattr(request, kind).SetInParent()
    assert decode(request.SerializeToString()) == Unexpected(kind)
    assert decode(b"") == Unexpected("None")


@given(st.binary(max_size=80))
def test_garbage_is_a_remote_error_or_a_message(data: bytes) -> None:
    """No other exception leaves the codec."""
    try:
        decode(data)
    except RemoteError:
        return


def test_the_headers_reply_strips_sets_and_asks() -> None:
    """What only the sidecar may set goes first; all modes are named, for the override replaces
    all."""
    message = response(
        HeadersReply(
            set_headers={"x-request-id": "e"}, metadata={"ex": "e"}, wants_response_headers=True
        )
    )
    mutation = message.request_headers.response.header_mutation
    assert list(mutation.remove_headers) == list(STRIPPED)
    assert mutated(mutation) == {"x-request-id": "e"}
    assert message.mode_override == ProcessingMode(
        request_header_mode=ProcessingMode.SEND,
        request_body_mode=ProcessingMode.BUFFERED,
        response_header_mode=ProcessingMode.SEND,
    )
    assert metadata(message) == {"pd": {"ex": "e"}}


def test_a_headers_reply_that_asks_nothing_overrides_nothing() -> None:
    """The mode of the listener stays."""
    message = response(HeadersReply())
    assert not message.HasField("mode_override")
    assert not message.HasField("dynamic_metadata")
    assert message.WhichOneof("response") == "request_headers"


def test_the_body_reply_carries_body_length_and_route() -> None:
    """Envoy answers an error to a new body without its length."""
    message = response(
        BodyReply(
            body=b"\xff{}",
            set_headers={":path": "/v1/x"},
            remove_headers=("y",),
            metadata={"rec": "[1]"},
            clears_route=True,
        )
    )
    common = message.request_body.response
    assert common.status == pb.CommonResponse.CONTINUE
    assert common.body_mutation.body == b"\xff{}"
    assert mutated(common.header_mutation) == {":path": "/v1/x", "content-length": "3"}
    assert list(common.header_mutation.remove_headers) == ["y"]
    assert common.clear_route_cache
    assert metadata(message) == {"pd": {"rec": "[1]"}}


def test_the_pass_reply_changes_nothing() -> None:
    """An empty answer to the response headers."""
    message = response(PassReply())
    assert message == pb.ProcessingResponse(response_headers=pb.HeadersResponse())


def test_the_immediate_reply_is_the_whole_answer() -> None:
    """Status, headers, body byte for byte, metadata."""
    message = response(
        ImmediateReply(status=503, body=b"\x00", headers={"x": "y"}, metadata={"reply": "r"})
    )
    immediate = message.immediate_response
    assert (immediate.status.code, immediate.body) == (503, b"\x00")
    assert mutated(immediate.headers) == {"x": "y"}
    assert metadata(message) == {"pd": {"reply": "r"}}


def test_a_header_beyond_latin_1_does_not_break_the_reply() -> None:
    """It is written with `?` in place of what a header cannot carry."""
    message = response(
        ImmediateReply(status=400, body=b"", headers={"content-type": "x/\u20ac\xe4"})
    )
    (option,) = message.immediate_response.headers.set_headers
    assert option.header.raw_value == b"x/?\xe4"


BODIES = [b"", b"{", b"\x00" * 127, b"\x22" * 128, b"x" * 16384, bytes(range(256)) * 300]


@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize("body", BODIES, ids=lambda body: str(len(body)))
def test_a_body_is_found_without_the_classes_as_with_them(body: bytes, is_last: bool) -> None:
    """Of every size of its lengths; whatever is cut off or added, it is what the classes say."""
    request = pb.ProcessingRequest(request_body=pb.HttpBody(body=body, end_of_stream=is_last))
    data = request.SerializeToString()
    assert decode(data) == RequestBody(body)
    for changed in (data + b"\x50\x01", data[:-1], data[:3], data + data, data[:2] + b"\x1a\x00"):
        try:
            expected = pb.ProcessingRequest.FromString(changed)
        except DecodeError:
            with pytest.raises(RemoteError):
                decode(changed)
        else:
            is_body = expected.WhichOneof("request") == "request_body"
            found = decode(changed)
            assert (found == RequestBody(expected.request_body.body)) == is_body


@pytest.mark.parametrize("size", range(300))
def test_a_reply_is_whole_whatever_its_lengths(size: int) -> None:
    """Lengths of one byte and of two, and each field around another that is just over."""
    text = "a" * size
    message = response(HeadersReply(set_headers={"x-request-id": text}, metadata={"rec": text}))
    assert mutated(message.request_headers.response.header_mutation) == {"x-request-id": text}
    assert metadata(message) == {"pd": {"rec": text}}
