"""Envoy's external processing messages (ext_proc v3): bytes to values and back.

The only module that knows their protobuf classes. Nothing here decides anything.
Source: envoy/service/ext_proc/v3/external_processor.proto.
"""

import msgspec
from envoy.config.core.v3 import base_pb2
from envoy.extensions.filters.http.ext_proc.v3 import processing_mode_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from google.protobuf.message import DecodeError

from sidecar.errors import RemoteError

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


def decode(data: bytes) -> Message:
    """One ProcessingRequest. Raises RemoteError on garbage."""
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


def _headers(message: pb.HttpHeaders) -> dict[str, str]:
    headers: dict[str, str] = {}
    for header in message.headers.headers:
        value = header.raw_value.decode("latin-1") or header.value
        seen = headers.get(header.key)
        headers[header.key] = value if seen is None else f"{seen},{value}"
    return headers


def encode(reply: Reply) -> bytes:
    """One ProcessingResponse."""
    response = pb.ProcessingResponse()
    if isinstance(reply, HeadersReply):
        common = response.request_headers.response
        common.header_mutation.remove_headers.extend(STRIPPED)
        _set_headers(common.header_mutation, reply.set_headers)
        if reply.wants_response_headers:
            # The override replaces all modes, so the others are repeated.
            mode = processing_mode_pb2.ProcessingMode
            response.mode_override.request_header_mode = mode.SEND
            response.mode_override.request_body_mode = mode.BUFFERED
            response.mode_override.response_header_mode = mode.SEND
        _set_metadata(response, reply.metadata)
    elif isinstance(reply, BodyReply):
        common = response.request_body.response
        common.status = pb.CommonResponse.CONTINUE
        common.header_mutation.remove_headers.extend(reply.remove_headers)
        _set_headers(common.header_mutation, reply.set_headers)
        if reply.body is not None:
            common.body_mutation.body = reply.body
            # Envoy answers an error to a new body without its length.
            _set_headers(common.header_mutation, {"content-length": str(len(reply.body))})
        common.clear_route_cache = reply.clears_route
        _set_metadata(response, reply.metadata)
    elif isinstance(reply, PassReply):
        response.response_headers.SetInParent()
    else:
        response.immediate_response.status.code = reply.status
        response.immediate_response.body = reply.body
        _set_headers(response.immediate_response.headers, reply.headers)
        _set_metadata(response, reply.metadata)
    data: bytes = response.SerializeToString()
    return data


def _set_headers(mutation: pb.HeaderMutation, headers: dict[str, str]) -> None:
    overwrite = base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
    for name, value in headers.items():
        option = mutation.set_headers.add(append_action=overwrite)
        option.header.key = name
        option.header.raw_value = value.encode("latin-1", "replace")


def _set_metadata(response: pb.ProcessingResponse, metadata: dict[str, str]) -> None:
    if metadata:
        fields = response.dynamic_metadata.fields[NAMESPACE].struct_value.fields
        for key, value in metadata.items():
            fields[key].string_value = value
