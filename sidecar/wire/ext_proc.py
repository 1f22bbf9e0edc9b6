"""Envoy's external processing messages (ext_proc v3): bytes to values and back.

The only module that knows their protobuf classes. Nothing here decides anything.
Source: envoy/service/ext_proc/v3/external_processor.proto.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import msgspec
from envoy.config.core.v3 import base_pb2
from envoy.extensions.filters.http.ext_proc.v3 import processing_mode_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from google.protobuf import struct_pb2
from google.protobuf.message import DecodeError

from sidecar.errors import RemoteError
from sidecar.wire import protobuf
from sidecar.wire.protobuf import BYTE, SHORT, field, head, tag

NAMESPACE = "pd"
"""Of the dynamic metadata; Envoy's filter must list it in `metadata_options`."""

DESTINATION = "x-gateway-destination-endpoint"
STRIPPED = (DESTINATION, "x-data-parallel-rank", "x-prefiller-host-port", "x-pd-answer")
"""Request headers that only the sidecar may set; the edge strips them too."""


class RequestHeaders(msgspec.Struct, frozen=True):
    """The client's request line and headers (names in lower case)."""

    headers: dict[str, str]
    is_last: bool
    """no body follows"""

    @property
    def method(self) -> str:
        return self.headers.get(":method", "")

    @property
    def path(self) -> str:
        return self.headers.get(":path", "")


class RequestBody(msgspec.Struct, frozen=True):
    body: bytes


class ResponseHeaders(msgspec.Struct, frozen=True):
    status: int
    reason: str = ""
    """`x-pd-error` of Envoy's own answers; empty: the engine's"""


class Unexpected(msgspec.Struct, frozen=True):
    """A message that the processing mode does not ask for. `kind` names the field."""

    kind: str


Message = RequestHeaders | RequestBody | ResponseHeaders | Unexpected


class HeadersReply(msgspec.Struct, frozen=True, kw_only=True):
    """Go on after the request headers."""

    set_headers: dict[str, str] = {}
    metadata: dict[str, str] = {}
    wants_response_headers: bool = False
    """hold the answer's headers for us too (`mode_override`)"""


class BodyReply(msgspec.Struct, frozen=True, kw_only=True):
    """Send the request on, with this body and these headers (pseudo headers too)."""

    body: bytes | None
    """None: as it came"""
    set_headers: dict[str, str] = {}
    remove_headers: tuple[str, ...] = ()
    metadata: dict[str, str] = {}
    clears_route: bool = False


class PassReply(msgspec.Struct, frozen=True):
    """Let the answer's headers go to the client as they are."""


class ImmediateReply(msgspec.Struct, frozen=True, kw_only=True):
    """Answer the client ourselves; whatever is under way upstream is closed."""

    status: int
    body: bytes
    headers: dict[str, str] = {}
    metadata: dict[str, str] = {}


Reply = HeadersReply | BodyReply | PassReply | ImmediateReply


def _tag_of(message: Any, name: str) -> bytes:
    return tag(message.DESCRIPTOR.fields_by_name[name].number)


def decode(data: bytes) -> Message:
    """One ProcessingRequest. Raises RemoteError on garbage."""
    body = _body_alone(data)
    if body is not None:
        return RequestBody(body)
    try:
        request = pb.ProcessingRequest.FromString(data)
    except DecodeError as error:
        raise RemoteError(f"not a ProcessingRequest: {error}") from None
    kind = request.WhichOneof("request")
    if kind == "request_headers":
        return RequestHeaders(
            _headers(request.request_headers), request.request_headers.end_of_stream
        )
    if kind == "request_body":
        return RequestBody(request.request_body.body)
    if kind == "response_headers":
        headers = _headers(request.response_headers)
        status = headers.get(":status", "")
        is_status = status.isdecimal() and len(status) == 3
        return ResponseHeaders(int(status) if is_status else 0, headers.get("x-pd-error", ""))
    return Unexpected(str(kind))


def _body_alone(data: bytes) -> bytes | None:
    """The body of a message that is a body and nothing else, as Envoy sends it, copied once; None:
    whatever it is, the classes tell."""
    message = protobuf.extent(data, 1) if data[:1] == _IN_BODY else None
    if message is None or message.stop != len(data):
        return None
    at: int = message.start
    body = protobuf.extent(data, at + 1) if data[at : at + 1] == _IN_BODY_BYTES else None
    return data[body] if body is not None and data[body.stop :] in _IN_BODY_ENDS else None


_IN_BODY: bytes = _tag_of(pb.ProcessingRequest, "request_body")
_IN_BODY_BYTES: bytes = _tag_of(pb.HttpBody, "body")
_IN_BODY_ENDS = (b"", pb.HttpBody(end_of_stream=True).SerializeToString())


def _headers(message: pb.HttpHeaders) -> dict[str, str]:
    listed = message.headers.headers
    headers = {h.key: h.raw_value.decode("latin-1") or h.value for h in listed}
    return headers if len(headers) == len(listed) else _joined(listed)


def _joined(listed: Iterable[base_pb2.HeaderValue]) -> dict[str, str]:
    """With commas where a name is repeated."""
    headers: dict[str, str] = {}
    for header in listed:
        value = header.raw_value.decode("latin-1") or header.value
        seen = headers.get(header.key)
        headers[header.key] = value if seen is None else f"{seen},{value}"
    return headers


def encode(reply: Reply) -> tuple[bytes, ...]:
    """One ProcessingResponse, in parts: a large body is not copied."""
    if isinstance(reply, HeadersReply):
        return (_headers_reply(reply),)
    if isinstance(reply, BodyReply):
        return _body_reply(reply)
    if isinstance(reply, PassReply):
        return (_PASS,)
    return (_immediate_reply(reply),)


_PASS: bytes = pb.ProcessingResponse(response_headers=pb.HeadersResponse()).SerializeToString()
_STRIP: bytes = pb.HeaderMutation(remove_headers=STRIPPED).SerializeToString()
_MODE = processing_mode_pb2.ProcessingMode
# The override replaces all modes, so the others are repeated.
_HOLD_ANSWER: bytes = pb.ProcessingResponse(
    mode_override=_MODE(
        request_header_mode=_MODE.SEND,
        request_body_mode=_MODE.BUFFERED,
        response_header_mode=_MODE.SEND,
    )
).SerializeToString()
_CLEAR: bytes = pb.CommonResponse(clear_route_cache=True).SerializeToString()
_OVERWRITE: bytes = base_pb2.HeaderValueOption(
    append_action=base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
).SerializeToString()


_REQUEST_HEADERS = _tag_of(pb.ProcessingResponse, "request_headers")
_REQUEST_BODY = _tag_of(pb.ProcessingResponse, "request_body")
_METADATA = _tag_of(pb.ProcessingResponse, "dynamic_metadata")
_RESPONSE = _tag_of(pb.HeadersResponse, "response")  # and of BodyResponse: both have it first
_HEADER_MUTATION = _tag_of(pb.CommonResponse, "header_mutation")
_BODY_MUTATION = _tag_of(pb.CommonResponse, "body_mutation")
_BODY = _tag_of(pb.BodyMutation, "body")
_SET = _tag_of(pb.HeaderMutation, "set_headers")
_REMOVE = _tag_of(pb.HeaderMutation, "remove_headers")
_HEADER = _tag_of(base_pb2.HeaderValueOption, "header")
_AROUND_HEADER = 2 + len(_OVERWRITE)
"""bytes of a short HeaderValueOption around its HeaderValue's"""
_KEY = _tag_of(base_pb2.HeaderValue, "key")
_RAW_VALUE = _tag_of(base_pb2.HeaderValue, "raw_value")
_FIELDS = _tag_of(struct_pb2.Struct, "fields")
_ENTRY_KEY, _ENTRY_VALUE = tag(1), tag(2)  # of any map
_STRING = _tag_of(struct_pb2.Value, "string_value")
_STRUCT = _tag_of(struct_pb2.Value, "struct_value")


def _headers_reply(reply: HeadersReply) -> bytes:
    mutation = field(_HEADER_MUTATION, _STRIP + _set_headers(reply.set_headers))
    made = field(_REQUEST_HEADERS, field(_RESPONSE, mutation)) + _metadata(reply.metadata)
    return made + _HOLD_ANSWER if reply.wants_response_headers else made


def _body_reply(reply: BodyReply) -> tuple[bytes, ...]:
    mutation = b"".join([field(_REMOVE, name.encode()) for name in reply.remove_headers])
    mutation += _set_headers(reply.set_headers)
    if reply.body is not None:
        # Envoy answers an error to a new body without its length.
        mutation += _set_headers({"content-length": str(len(reply.body))})
    common = field(_HEADER_MUTATION, mutation)
    if reply.clears_route:
        common += _CLEAR
    body = reply.body or b""
    if reply.body is not None:
        before = head(_BODY, len(body))
        common += head(_BODY_MUTATION, len(before) + len(body)) + before
    # The body stands last in all that holds it.
    response = head(_RESPONSE, len(common) + len(body)) + common
    whole = head(_REQUEST_BODY, len(response) + len(body)) + response
    return _metadata(reply.metadata) + whole, body


def _immediate_reply(reply: ImmediateReply) -> bytes:
    response = pb.ProcessingResponse()
    response.immediate_response.status.code = reply.status
    response.immediate_response.body = reply.body
    response.immediate_response.headers.MergeFromString(_set_headers(reply.headers))
    data: bytes = response.SerializeToString()
    return data + _metadata(reply.metadata)


def _set_headers(headers: dict[str, str]) -> bytes:
    """Of a HeaderMutation. Each overwrites, or a client could add a second value."""
    return b"".join([_option(name, value) for name, value in headers.items()])


def _option(name: str, value: str) -> bytes:
    raw = value.encode("latin-1", "replace")
    key = _key_of(name)
    size = len(key) + len(raw) + 2
    whole = size + _AROUND_HEADER
    if whole < SHORT:  # the usual: every length fits into one byte
        return b"".join(
            (
                _SET,
                BYTE[whole],
                _HEADER,
                BYTE[size],
                key,
                _RAW_VALUE,
                BYTE[len(raw)],
                raw,
                _OVERWRITE,
            )
        )
    return field(_SET, field(_HEADER, key + field(_RAW_VALUE, raw)) + _OVERWRITE)


@lru_cache(maxsize=256)
def _key_of(name: str) -> bytes:
    return field(_KEY, name.encode())


def _metadata(metadata: dict[str, str]) -> bytes:
    """`{"pd": metadata}` as the `dynamic_metadata` of a ProcessingResponse."""
    if not metadata:
        return b""
    inner = b"".join([_entry(key, value.encode()) for key, value in metadata.items()])
    space = field(_ENTRY_KEY, NAMESPACE.encode()) + field(_ENTRY_VALUE, field(_STRUCT, inner))
    return field(_METADATA, field(_FIELDS, space))


def _entry(name: str, value: bytes) -> bytes:
    """Of a Struct: a name and a string."""
    key = _entry_key_of(name)
    size = len(value) + 2
    whole = len(key) + size + 2
    if whole < SHORT:
        return b"".join(
            (_FIELDS, BYTE[whole], key, _ENTRY_VALUE, BYTE[size], _STRING, BYTE[len(value)], value)
        )
    return field(_FIELDS, key + field(_ENTRY_VALUE, field(_STRING, value)))


@lru_cache(maxsize=256)
def _entry_key_of(name: str) -> bytes:
    return field(_ENTRY_KEY, name.encode())
