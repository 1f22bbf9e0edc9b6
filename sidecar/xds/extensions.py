"""The Envoy extensions that `envoy/*.yaml` names, and packing them the same way every time.

`json_format` finds the message of an `@type` only when its module has been imported. It then packs
it with protobuf's maps in hash order, which differs from process to process; `repack` undoes that.
"""

from collections.abc import Mapping
from typing import Any

from envoy.config.route.v3 import route_components_pb2
from envoy.extensions.access_loggers.file.v3 import file_pb2
from envoy.extensions.access_loggers.filters.cel.v3 import cel_pb2
from envoy.extensions.access_loggers.grpc.v3 import als_pb2
from envoy.extensions.filters.http.buffer.v3 import buffer_pb2
from envoy.extensions.filters.http.cors.v3 import cors_pb2
from envoy.extensions.filters.http.ext_proc.v3 import ext_proc_pb2
from envoy.extensions.filters.http.router.v3 import router_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2
from envoy.extensions.http.early_header_mutation.header_mutation.v3 import header_mutation_pb2
from envoy.extensions.load_balancing_policies.override_host.v3 import override_host_pb2
from envoy.extensions.load_balancing_policies.round_robin.v3 import round_robin_pb2
from envoy.extensions.load_balancing_policies.subset.v3 import subset_pb2
from envoy.extensions.request_id.uuid.v3 import uuid_pb2
from envoy.extensions.retry.host.previous_hosts.v3 import previous_hosts_pb2
from envoy.extensions.upstreams.http.v3 import http_protocol_options_pb2
from google.protobuf import any_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

IMPORTED = (
    als_pb2, buffer_pb2, cel_pb2, cors_pb2, ext_proc_pb2, file_pb2, header_mutation_pb2,
    http_connection_manager_pb2, http_protocol_options_pb2, override_host_pb2, previous_hosts_pb2,
    round_robin_pb2, route_components_pb2, router_pb2, subset_pb2, uuid_pb2,
)  # fmt: skip
"""Named so that the imports are seen to be meant."""


def repack(packed: any_pb2.Any) -> None:
    """Serialize what `packed` holds, at every depth, with maps in key order."""
    descriptor = descriptor_pool.Default().FindMessageTypeByName(packed.TypeName())
    message = message_factory.GetMessageClass(descriptor)()
    message.ParseFromString(packed.value)
    _repack_fields(message)
    packed.value = message.SerializeToString(deterministic=True)


def _repack_fields(message: Message) -> None:
    for field, value in message.ListFields():
        if field.type != FieldDescriptor.TYPE_MESSAGE:
            continue
        for child in _children(value):
            if isinstance(child, any_pb2.Any):
                repack(child)
            else:
                _repack_fields(child)


def _children(value: Any) -> list[Message]:
    """The messages of a field: of a map its values, of a repeated field its items."""
    if isinstance(value, Message):
        return [value]
    if not isinstance(value, Mapping):
        return list(value)
    return [child for child in value.values() if isinstance(child, Message)]
