"""One request to every instance at once, and what each of them said.

Knows no registry: it is handed the instances. No instance's silence hides another's answer.
"""

import asyncio
from collections.abc import Iterable, Mapping

import aiohttp

from sidecar.routing.instance import Instance
from sidecar.routing.instance_reply import InstanceReply

TIMEOUT_S = 600.0
"""for one instance's answer: to end a profile an engine writes its whole trace"""
MAX_ANSWER_BYTES = 65536
"""shown of an answer"""


class FanOut:
    def __init__(
        self, api_key: str | None, connect_timeout_s: float, timeout_s: float = TIMEOUT_S
    ) -> None:
        """`api_key` takes the place of the client's Authorization."""
        self._api_key = api_key
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),  # all of them at once, however many
            timeout=aiohttp.ClientTimeout(total=timeout_s, sock_connect=connect_timeout_s),
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def post(
        self,
        path: str,
        instances: Iterable[tuple[str, Instance]],
        body: bytes,
        headers: Mapping[str, str],
    ) -> list[InstanceReply]:
        """POST to all of them, given as (short name, instance); the answers in the same order."""
        passed = {k: headers[k] for k in ("Content-Type", "Authorization") if k in headers}
        if self._api_key is not None:
            passed["Authorization"] = f"Bearer {self._api_key}"
        asked = [self._ask(path, name, one, body, passed) for name, one in instances]
        return list(await asyncio.gather(*asked))

    async def _ask(
        self, path: str, name: str, instance: Instance, body: bytes, headers: dict[str, str]
    ) -> InstanceReply:
        url = instance.base_url.removesuffix("/v1") + path
        status, text = None, ""
        try:
            async with self._session.post(url, data=body or None, headers=headers) as answer:
                text = (await _start_of(answer)).decode("utf-8", "replace")
                status = answer.status
        except TimeoutError:
            text = "no answer in time"
        except (aiohttp.ClientError, OSError) as error:
            text = str(error) or type(error).__name__
        return InstanceReply(
            instance=name, address=instance.address, role=instance.role, status=status, body=text
        )

    async def close(self) -> None:
        await self._session.close()


async def _start_of(answer: aiohttp.ClientResponse) -> bytes:
    """All of its body that is shown."""
    start = bytearray()
    async for piece in answer.content.iter_any():
        start += piece
        if len(start) >= MAX_ANSWER_BYTES:
            break
    return bytes(start[:MAX_ANSWER_BYTES])
