"""Protobuf by hand against the classes: whatever a reply holds, both say the same of it."""

import pytest
from envoy.config.core.v3 import base_pb2
from envoy.extensions.filters.http.ext_proc.v3.processing_mode_pb2 import ProcessingMode
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from google.protobuf import empty_pb2
from google.protobuf.internal.decoder import _DecodeVarint  # type: ignore[attr-defined]
from hypothesis import example, given
from hypothesis import strategies as st

from sidecar.wire import protobuf
from sidecar.wire.ext_proc import (
    NAMESPACE,
    STRIPPED,
    BodyReply,
    HeadersReply,
    ImmediateReply,
    PassReply,
    Reply,
    encode,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
NAMES = st.one_of(st.sampled_from(["content-length", ":path", "x-request-id"]), TEXT)
HEADERS = st.dictionaries(NAMES, TEXT, max_size=4)
BODIES = st.one_of(
    st.binary(max_size=300),
    st.sampled_from([0, 100, 127, 128, 16_383, 16_384, 1 << 21]).map(bytes),
)
HEADERS_REPLIES = st.builds(
    HeadersReply, set_headers=HEADERS, metadata=HEADERS, wants_response_headers=st.booleans()
)
BODY_REPLIES = st.builds(
    BodyReply,
    body=st.none() | BODIES,
    set_headers=HEADERS,
    remove_headers=st.lists(TEXT, max_size=3).map(tuple),
    metadata=HEADERS,
    clears_route=st.booleans(),
)
IMMEDIATE_REPLIES = st.builds(
    ImmediateReply,
    status=st.integers(100, 599),
    body=BODIES,
    headers=HEADERS,
    metadata=HEADERS,
)


def expected(reply: Reply) -> pb.ProcessingResponse:
    """The reply by the classes alone."""
    response = pb.ProcessingResponse()
    if isinstance(reply, HeadersReply):
        common = response.request_headers.response
        common.header_mutation.remove_headers.extend(STRIPPED)
        set_headers(common.header_mutation, reply.set_headers)
        if reply.wants_response_headers:
            mode = response.mode_override
            mode.request_header_mode = ProcessingMode.SEND
            mode.request_body_mode = ProcessingMode.BUFFERED
            mode.response_header_mode = ProcessingMode.SEND
    elif isinstance(reply, BodyReply):
        common = response.request_body.response
        common.header_mutation.SetInParent()
        common.header_mutation.remove_headers.extend(reply.remove_headers)
        set_headers(common.header_mutation, reply.set_headers)
        if reply.body is not None:
            common.body_mutation.body = reply.body
            set_headers(common.header_mutation, {"content-length": str(len(reply.body))})
        common.clear_route_cache = reply.clears_route
    elif isinstance(reply, PassReply):
        response.response_headers.SetInParent()
    else:
        response.immediate_response.status.code = reply.status
        response.immediate_response.body = reply.body
        response.immediate_response.headers.SetInParent()
        set_headers(response.immediate_response.headers, reply.headers)
    if not isinstance(reply, PassReply) and reply.metadata:
        fields = response.dynamic_metadata.fields[NAMESPACE].struct_value.fields
        for key, value in reply.metadata.items():
            fields[key].string_value = value
    return response


def set_headers(mutation: pb.HeaderMutation, headers: dict[str, str]) -> None:
    overwrite = base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
    for name, value in headers.items():
        header = base_pb2.HeaderValue(key=name, raw_value=value.encode("latin-1", "replace"))
        mutation.set_headers.add(header=header, append_action=overwrite)


def assert_same(reply: Reply) -> None:
    """To the field: deterministic bytes show what `==` of maps and presence might not."""
    read, wanted = pb.ProcessingResponse.FromString(b"".join(encode(reply))), expected(reply)
    assert read == wanted
    as_bytes = [one.SerializeToString(deterministic=True) for one in (read, wanted)]
    assert as_bytes[0] == as_bytes[1]
    read.DiscardUnknownFields()
    assert read.SerializeToString(deterministic=True) == as_bytes[1], "an unknown field"


@given(HEADERS_REPLIES)
@example(HeadersReply())
def test_every_headers_reply(reply: HeadersReply) -> None:
    """As the classes make it."""
    assert_same(reply)


@given(BODY_REPLIES)
@example(BodyReply(body=None))
@example(BodyReply(body=b""))
def test_every_body_reply(reply: BodyReply) -> None:
    """As the classes make it; a body of 0 bytes is not one that stays."""
    assert_same(reply)
    read = pb.ProcessingResponse.FromString(b"".join(encode(reply))).request_body.response
    assert read.HasField("body_mutation") == (reply.body is not None)


@given(IMMEDIATE_REPLIES)
@example(ImmediateReply(status=503, body=b""))
def test_every_immediate_reply(reply: ImmediateReply) -> None:
    """As the classes make it."""
    assert_same(reply)


def test_the_pass_reply() -> None:
    """As the classes make it."""
    assert_same(PassReply())


@given(st.integers(0, 1 << 40))
@example(127)
@example(128)
@example(16_383)
@example(16_384)
def test_varints(value: int) -> None:
    """The library reads the same number, and all of it."""
    data = protobuf.varint(value)
    assert _DecodeVarint(data, 0) == (value, len(data))


@pytest.mark.parametrize("size", [0, 1, 127, 128, 129, 16_383, 16_384, 1 << 21])
def test_a_field_of_any_size(size: int) -> None:
    """The library skips it as one field, of the number and the bytes that were given."""
    body = pb.BodyMutation.FromString(protobuf.field(protobuf.tag(1), bytes(size)))
    assert body.body == bytes(size)
    assert protobuf.head(protobuf.tag(1), size) + bytes(size) == protobuf.field(
        protobuf.tag(1), bytes(size)
    )


@pytest.mark.parametrize("number", range(1, 16))
def test_tags(number: int) -> None:
    """All that fit in one byte: an unknown field of that number comes back as it is."""
    data = protobuf.field(protobuf.tag(number), b"x")
    assert empty_pb2.Empty.FromString(data).SerializeToString() == data
