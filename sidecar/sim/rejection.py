"""What becomes of the KV of a decode leg that its handler ends without having served it.

vLLM tells the connector when a handler refuses a leg, fails, or is cancelled because its client
left (generate/base/serving.py, `_with_kv_transfer_rejection_cleanup`). A streamed answer's handler
has returned before its first token. What vLLM's request models refuse has no handler yet, and the
one of batches does not do it.
"""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sidecar.sim.api_error import ApiError
from sidecar.sim.connector import Connector
from sidecar.sim.kv_params import leg_of
from sidecar.sim.prompt import Api


class Rejection:
    """Of one request, whose body is not known before it was read."""

    def __init__(self, connector: Connector, api: Api) -> None:
        self._connector = connector
        self._api = api
        self._body: Mapping[str, Any] = {}

    def see(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """This is the body; returns it."""
        self._body = body
        return body

    @contextmanager
    def watch(self) -> Iterator[None]:
        """The handler runs meanwhile."""
        try:
            yield
        except ApiError as error:
            if not error.is_validation:
                self.tell()
            raise
        except asyncio.CancelledError:
            self.tell()
            raise

    def tell(self) -> None:
        """The handler has refused the request."""
        params = self._body.get("kv_transfer_params")
        if self._api != "batch" and leg_of(params) == "decode":
            assert isinstance(params, Mapping)
            self._connector.refuse(params)
