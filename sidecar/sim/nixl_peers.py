"""The engines that a NIXL decode engine has shaken hands with.

An engine that is known is found by its id alone: another address in a request changes nothing any
more (nixl/pull_worker.py, `_remote_agents`).
"""

import asyncio
from typing import Any

from sidecar.sim.link import LinkError, Links
from sidecar.sim.messages import AnyMessage, Hello, Reply
from sidecar.sim.options import Address

HANDSHAKE_LIMIT_S = 5.0
"""vLLM's RCVTIMEO. Its ZMQ socket dials again meanwhile, so a refused dial is no answer."""
REDIAL_S = 0.05
UNREACHABLE = "nixl_peer_unreachable"


class PeerError(Exception):
    """No handshake, or the peer went away; the text is the kind for `errors`."""


class NixlPeers:
    """Known engines by id. One handshake runs at a time, as on vLLM's one thread for them."""

    def __init__(self, links: Links, compatibility: str) -> None:
        self._links = links
        self._compatibility = compatibility
        self._known: dict[str, Address] = {}
        self._joining: dict[Any, asyncio.Task[Address]] = {}
        self._turn = asyncio.Lock()

    async def join(self, engine_id: Any, host: Any, port: Any) -> Address:
        """Where the engine is, after a handshake if need be; raises PeerError."""
        if (known := self.known(engine_id)) is not None:
            return known
        key = engine_id if isinstance(engine_id, str) else None
        joining = self._joining.get(key)
        if joining is None:
            joining = asyncio.create_task(self._shake_hands(key, host, port))
            self._joining[key] = joining
            joining.add_done_callback(lambda _: self._joining.pop(key, None))
        # Shielded: it is everybody's who asks meanwhile.
        return await asyncio.shield(joining)

    def known(self, engine_id: Any) -> Address | None:
        """Where a known engine is."""
        return self._known.get(engine_id) if isinstance(engine_id, str) else None

    async def call(self, engine_id: str, message: AnyMessage) -> Reply:
        """Ask a known engine; raises PeerError, and forgets one that is gone."""
        try:
            return await self._links.call(self._known[engine_id], message)
        except (LinkError, KeyError):
            self._known.pop(engine_id, None)
            raise PeerError("nixl_peer_lost") from None

    def close(self) -> None:
        """The life ends."""
        for task in self._joining.values():
            task.cancel()

    async def _shake_hands(self, engine_id: str | None, host: Any, port: Any) -> Address:
        async with self._turn:
            try:
                address = Address(str(host), int(port))
                async with asyncio.timeout(HANDSHAKE_LIMIT_S):
                    reply = await self._greet(address, engine_id)
            except (TypeError, ValueError, TimeoutError):
                raise PeerError(UNREACHABLE) from None
        if reply.error is not None:
            raise PeerError(reply.error)
        if engine_id is not None:
            self._known[engine_id] = address
        return address

    async def _greet(self, address: Address, engine_id: str | None) -> Reply:
        while True:
            hello = Hello(self._links.next_call(), engine_id, self._compatibility)
            try:
                return await self._links.call(address, hello)
            except LinkError:
                await asyncio.sleep(REDIAL_S)
