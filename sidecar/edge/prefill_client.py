"""The HTTP client of the prefill legs: one session with keep-alive to all instances.

Translates what can happen on a socket into PrefillAnswered and PrefillFailed. Does not retry: that
is the exchange's decision. Cancelling `send` closes the connection, which vLLM takes for an abort.
"""

import asyncio
import errno
from time import perf_counter

import aiohttp
from multidict import CIMultiDictProxy

from sidecar.exchange.effects import StartPrefill
from sidecar.exchange.events import PrefillAnswered, PrefillFailed
from sidecar.exchange.reasons import Reason

IDLE_S = 4.0
"""vLLM closes an idle connection after 5 s: let go first, so that no request meets the closing"""

_OUR_FAULT = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL}
"""a connect that failed for want of something on this machine says nothing of the instance"""


class PrefillClient:
    def __init__(self, connect_timeout_s: float) -> None:
        self._connect_timeout_s = connect_timeout_s
        # No limit of connections: prefill legs wait at the engines, never here (design §7).
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_S, ttl_dns_cache=30)
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        )

    async def send(self, leg: StartPrefill) -> PrefillAnswered | PrefillFailed:
        """POST the leg and read its whole answer.

        Raises OSError when this machine has no socket for it: that is no fault of the instance,
        which would be ejected for it."""
        started = perf_counter()
        if leg.timeout_s <= 0:  # aiohttp would take it for no limit
            return PrefillFailed(reason=Reason.PREFILL_TIMEOUT)
        timeout = aiohttp.ClientTimeout(total=leg.timeout_s, sock_connect=self._connect_timeout_s)
        try:
            async with self._session.post(
                leg.url, data=leg.body, headers=leg.headers, timeout=timeout, allow_redirects=False
            ) as response:
                body = await _body(response, leg.body_timeout_s)
                return PrefillAnswered(
                    status=response.status,
                    body=body,
                    headers=_for_the_client(response.headers),
                    seconds=perf_counter() - started,
                )
        except aiohttp.ConnectionTimeoutError:
            reason = Reason.PREFILL_UNREACHABLE
        except TimeoutError:
            reason = Reason.PREFILL_TIMEOUT
        except aiohttp.ClientConnectorError as error:
            if error.os_error.errno in _OUR_FAULT:
                raise error.os_error from None
            is_late = error.os_error.errno == errno.ETIMEDOUT  # the kernel gave up before we did
            reason = Reason.PREFILL_UNREACHABLE if is_late else Reason.PREFILL_REFUSED
        except aiohttp.ClientError:
            reason = Reason.PREFILL_RESET
        return PrefillFailed(reason=reason, seconds=perf_counter() - started)

    async def close(self) -> None:
        await self._session.close()


_NOT_FOR_THE_CLIENT = frozenset(
    (
        "connection", "content-encoding", "content-length", "date", "keep-alive",
        "proxy-authenticate", "host", "server", "set-cookie", "te", "trailer",
        "transfer-encoding", "upgrade", "via", "x-request-id",
    )
)  # fmt: skip
"""Of one connection, undone by this client (the encoding), or said anew by the edge."""


def _for_the_client(headers: "CIMultiDictProxy[str]") -> dict[str, str]:
    joined: dict[str, str] = {}
    for name, value in headers.items():
        key = name.lower()
        if key not in _NOT_FOR_THE_CLIENT:
            joined[key] = f"{joined[key]}, {value}" if key in joined else value
    return joined


async def _body(response: aiohttp.ClientResponse, limit_s: float | None) -> bytes | None:
    """The whole body; None for a 2xx that is not whole within `limit_s`."""
    if limit_s is None or not 200 <= response.status < 300:
        return await response.read()
    try:
        async with asyncio.timeout(limit_s):
            return await response.read()
    except TimeoutError:
        return None
