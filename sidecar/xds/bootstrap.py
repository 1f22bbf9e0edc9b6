"""The document Envoy starts from, and its hash.

The supervisor uses this module, so it imports neither protobuf nor grpc.
"""

import hashlib
from typing import Any

import msgspec

from sidecar.xds.settings import EdgeSettings
from sidecar.xds.templates import Template

_NAMES = ("node_id", "admin_host", "admin_port", "control_socket", "max_heap_bytes")


def bootstrap_document(template: Template, settings: EdgeSettings) -> dict[str, Any]:
    """`envoy/bootstrap.yaml` filled in. Raises SnapshotError (see `Template.fill`)."""
    return template.fill({name: getattr(settings, name) for name in _NAMES})


def bootstrap_hash(document: dict[str, Any]) -> str:
    """SHA-256 (hex) of the document: a living Envoy with another is not adopted (design §2)."""
    return hashlib.sha256(msgspec.json.encode(document, order="deterministic")).hexdigest()
