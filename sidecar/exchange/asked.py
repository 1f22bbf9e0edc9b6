"""What records say of a request: as little as accounting needs."""

import msgspec

from sidecar.wire.paths import Api

_MODEL_MAX = 128
"""characters of a model's name that are kept: a client may write anything there"""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    api: Api | None
    """None: a single-instance path"""
    model_label: str = ""
    """empty: its body was not read"""
    is_streaming: bool = False
    body_bytes: int = 0

    @property
    def api_label(self) -> str:
        return self.api.value if self.api else "other"

    @property
    def model(self) -> str:
        return self.model_label[:_MODEL_MAX]
