"""Asks every known instance, again and again, whether it serves: `GET /health` (design §4).

Knows no registry and no rule of readiness: what it finds goes to callbacks, with the generation it
was asked for. Invariants: one instance has at most one probe under way; a slow one delays no other;
what an instance is (`on_described`) is reported before its first good probe, known or not, so that
nothing is placed on it as an engine of unknown model while the answer is on its way, or as what was
there before. It is asked anew after each probe that was not good: another engine may have come.

Those that answered well keep their pace whatever else is watched; the others share a budget, so
that a flood of registrations that lead nowhere costs no ready instance its probe in time.

Every probe connects anew: an old connection would go on working where the listener is gone or its
backlog is full, which is what new requests meet. Names are resolved here, and the probe goes to the
endpoint that Envoy will be given.
"""

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Any

import aiohttp
import msgspec
from yarl import URL

from sidecar.routing.instance import Version
from sidecar.routing.model_card import ModelCard
from sidecar.routing.probe import ProbeOutcome, ProbeTarget
from sidecar.wire.description import parse_models, parse_version
from sidecar.wire.names import as_ip, join_address

log = logging.getLogger(__name__)

AGENT = "pd-sidecar-probe"
"""User-Agent, by which an edge of ours knows that it is taken for an engine (envoy/routes.yaml)"""
MAX_IN_FLIGHT = 256
"""probes at the same moment; each holds one descriptor"""
DOUBTFUL_IN_FLIGHT = 32
"""of these: probes of instances whose last one was not good"""
DOUBTFUL_A_SECOND = 200
"""and so many a second. One costs about 0.5 ms: 1,350 that refuse, every 0.3 s each, kept the loop
so busy that the probes of ready engines timed out."""
MAX_BODY_BYTES = 1024 * 1024
"""read of `/version` and `/v1/models`"""
DESCRIBE_EVERY = 5
"""good probes between two attempts to learn what is still unknown"""
ASK_AGAIN_EVERY = 15
"""good probes between two questions for what is known: adapters are loaded while an engine runs"""
RESOLVE_EVERY_S = 30.0
"""age at which a name is looked up again; at once after a bad probe"""
RESOLVER_THREADS = 8
"""getaddrinfo blocks; a dead name server must not fill the loop's own threads"""

_OUR_FAULT = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL}
"""a connect that failed for want of something on this machine says nothing of the instance"""
_CONNECT_FAULTS: dict[int | None, ProbeOutcome] = {
    errno.ECONNREFUSED: ProbeOutcome.REFUSED,
    errno.ETIMEDOUT: ProbeOutcome.TIMEOUT,  # the kernel gave up before we did
}
"""all others say that no answer came, and not that nobody listens"""

OnProbe = Callable[[str, int, ProbeOutcome], None]
"""(address, generation, outcome)"""
OnDescribed = Callable[[str, int, Version | None, tuple[ModelCard, ...]], None]
"""(address, generation, version or unknown, models or unknown), first and whenever that changed"""
OnResolved = Callable[[str, int, str | None], None]
"""(address, generation, `ip:port` or not resolvable), first and whenever that changed"""
Resolve = Callable[[str, int], Awaitable[list[str]]]
"""(name, port) to IPs in order of preference; raises OSError"""


class Prober:
    """Watches what it is told to; made inside a running loop, closed once."""

    def __init__(
        self,
        interval_s: float,
        timeout_s: float,
        *,
        on_probe: OnProbe,
        on_described: OnDescribed,
        on_resolved: OnResolved,
        api_key: str | None = None,
        resolve: Resolve | None = None,
        max_in_flight: int = MAX_IN_FLIGHT,
    ) -> None:
        """`interval_s`: from the start of a probe to the start of the next. `timeout_s`: of one
        question or name look-up. `api_key`: sent as a bearer token."""
        self.interval_s = interval_s
        self.timeout_s = timeout_s
        self.on_probe = on_probe
        self.on_described = on_described
        self.on_resolved = on_resolved
        self._in_flight = asyncio.Semaphore(max_in_flight)
        self._doubtful_in_flight = asyncio.Semaphore(DOUBTFUL_IN_FLIGHT)
        self._doubtful = 0
        self._executor = ThreadPoolExecutor(RESOLVER_THREADS, "resolver")
        self.resolve: Resolve = resolve or self._getaddrinfo
        self._lookups: dict[str, asyncio.Future[list[Any]]] = {}
        self._headers = {"User-Agent": AGENT}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            timeout=aiohttp.ClientTimeout(total=timeout_s),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
        )
        self._watched: dict[str, tuple[_Watch, asyncio.Task[None]]] = {}

    def __repr__(self) -> str:
        return f"Prober({len(self._watched)} instances, every {self.interval_s} s)"

    def watch(self, targets: Iterable[ProbeTarget]) -> None:
        """From now on probe exactly these. One that is new, or of a new generation, is probed at
        once; the others keep their pace. To be called from callbacks as well."""
        wanted = {target.address: target for target in targets}
        for address in self._watched.keys() - wanted.keys():
            self._watched.pop(address)[1].cancel()
            self._lookups.pop(address.rpartition(":")[0], None)
        for address, target in wanted.items():
            before, old = self._watched.get(address, (None, None))
            if before is not None and before.generation == target.generation:
                continue
            if old is not None:
                old.cancel()
            watch = _Watch(self, target, before.ip if before is not None else None)
            task = asyncio.create_task(watch.run(old), name=f"probe {address}")
            self._watched[address] = (watch, task)

    @contextlib.asynccontextmanager
    async def turn(self, is_good: bool) -> AsyncIterator[None]:
        """What a probe holds while it runs."""
        async with contextlib.AsyncExitStack() as held:
            if not is_good:
                await held.enter_async_context(self._doubtful_in_flight)
            await held.enter_async_context(self._in_flight)
            yield

    def pace_s(self, is_good: bool) -> float:
        """From the start of a probe to the start of the next."""
        if is_good:
            return self.interval_s
        return max(self.interval_s, self._doubtful / DOUBTFUL_A_SECOND)

    def count_doubtful(self, change: int) -> None:
        self._doubtful += change

    async def close(self) -> None:
        """End all probes. Idempotent."""
        tasks = [task for _, task in self._watched.values()]
        self._watched.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._session.close()
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def get(self, url: URL, host: str) -> tuple[int, bytes]:
        """(status, the body up to MAX_BODY_BYTES) of a URL whose host is an IP; `host` is the one
        that the instance goes by. Raises as aiohttp does."""
        async with self._session.get(
            url,
            headers={**self._headers, "Host": join_address(host, url.port or 80)},
            allow_redirects=False,
            server_hostname=host if url.scheme == "https" else None,
        ) as answer:
            body = bytearray()
            async for chunk in answer.content.iter_any():
                body += chunk
                if len(body) > MAX_BODY_BYTES:
                    break
            return answer.status, bytes(body)

    async def _getaddrinfo(self, name: str, port: int) -> list[str]:
        """One look-up of a name at a time: a name server that does not answer holds its thread long
        after the asker gave up, and would get all of them. What came after that is the answer to
        the next who asks: behind many dead names a good one never came in time."""
        lookup = self._lookups.get(name)
        if lookup is None:
            lookup = asyncio.get_running_loop().run_in_executor(
                self._executor, lambda: socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
            )
            # Nobody may be left to hear of its failure.
            lookup.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._lookups[name] = lookup
        try:
            return [str(entry[4][0]) for entry in await asyncio.shield(lookup)]
        finally:
            if lookup.done() and self._lookups.get(name) is lookup:
                del self._lookups[name]


class _Watch:
    """One instance in one life: its pace, its endpoint, and what is known of it."""

    def __init__(self, prober: Prober, target: ProbeTarget, ip: str | None) -> None:
        """`ip`: where its name led in an earlier life, if anywhere."""
        url = URL(target.base_url)
        self._prober = prober
        self._address = target.address
        self.generation = target.generation
        self.ip = ip
        self._scheme = url.scheme
        self._host = url.host or ""
        self._port = url.port or 80
        self._resolved_at: float | None = None
        self._known: tuple[Version | None, tuple[ModelCard, ...]] | None = None
        """None: not reported yet"""
        self._good = 0
        self._was_ok = True
        self._is_good = False
        """whether the last probe that said something was good"""

    async def run(self, before: asyncio.Task[None] | None) -> None:
        """Probe until cancelled. `before`: the watch of an earlier life, to be over first."""
        if before is not None:
            await asyncio.wait([before])
        loop = asyncio.get_running_loop()
        self._prober.count_doubtful(1)
        try:
            while True:
                started = loop.time()
                try:
                    async with self._prober.turn(self._is_good):
                        await self._round(loop)
                except Exception:  # a callback's bug must not leave an instance unprobed
                    log.exception("probing %s went wrong", self._address)
                pace_s = self._prober.pace_s(self._is_good)
                await asyncio.sleep(max(0.0, started + pace_s - loop.time()))
        finally:
            if not self._is_good:
                self._prober.count_doubtful(-1)

    async def _round(self, loop: asyncio.AbstractEventLoop) -> None:
        await self._find(loop.time())
        if self.ip is None:
            return
        outcome = await self._probe()
        if outcome is None:
            return
        is_back = not self._was_ok
        self._was_ok = outcome is ProbeOutcome.OK
        if self._was_ok is not self._is_good:
            self._is_good = self._was_ok
            self._prober.count_doubtful(-1 if self._is_good else 1)
        if self._was_ok:
            asks_all = is_back or (self._good > 0 and self._good % ASK_AGAIN_EVERY == 0)
            if asks_all or self._known is None or self._good % DESCRIBE_EVERY == 0:
                await self._describe(asks_all)
            self._good += 1
        self._prober.on_probe(self._address, self.generation, outcome)

    async def _find(self, now: float) -> None:
        """Have an IP; of a name, keep the last one as long as the name still has it, or cannot be
        looked up."""
        first = self._resolved_at is None
        if not first and (as_ip(self._host) or not self._is_stale(now)):
            return
        self._resolved_at = now
        ip = await self._look_up()
        if ip is None and self.ip is not None:
            return
        if first or ip != self.ip:
            if ip != self.ip:
                self._known = None  # another engine
            self.ip = ip
            endpoint = join_address(ip, self._port) if ip is not None else None
            self._prober.on_resolved(self._address, self.generation, endpoint)

    def _is_stale(self, now: float) -> bool:
        resolved_at = self._resolved_at if self._resolved_at is not None else now
        return self.ip is None or not self._was_ok or now - resolved_at >= RESOLVE_EVERY_S

    async def _look_up(self) -> str | None:
        literal = as_ip(self._host)
        if literal is not None:
            return str(literal)
        try:
            async with asyncio.timeout(self._prober.timeout_s):
                ips = await self._prober.resolve(self._host, self._port)
        except (OSError, UnicodeError) as fault:  # TimeoutError is an OSError
            log.debug("resolving %s: %s", self._host, fault)
            return None
        if self.ip in ips:
            return self.ip
        return ips[0] if ips else None

    async def _probe(self) -> ProbeOutcome | None:
        """None: the fault is ours, and nothing was learned."""
        try:
            status, _ = await self._get("/health")
        except TimeoutError:
            return ProbeOutcome.TIMEOUT
        except OSError as fault:
            if fault.errno in _OUR_FAULT:
                log.warning("cannot probe %s: %s", self._address, fault)
                return None
            return _CONNECT_FAULTS.get(fault.errno, ProbeOutcome.NO_ANSWER)
        except aiohttp.ServerConnectionError:
            return ProbeOutcome.NO_ANSWER
        except (aiohttp.ClientError, ValueError):
            # It answered, but not HTTP that can be read.
            return ProbeOutcome.BAD_STATUS
        return ProbeOutcome.OK if status == HTTPStatus.OK else ProbeOutcome.BAD_STATUS

    async def _describe(self, asks_all: bool) -> None:
        """Ask for what is unknown, or for all; what it does not say then stays."""
        version, cards = self._known or (None, ())
        if version is None or asks_all:
            said = await self._ask("/version")
            version = version if said is None else parse_version(said)
        if not cards or asks_all:
            said = await self._ask("/v1/models")
            cards = cards if said is None else _first_seen(cards, parse_models(said))
        if (version, cards) != self._known:
            self._known = (version, cards)
            self._prober.on_described(self._address, self.generation, version, cards)

    async def _ask(self, path: str) -> bytes | None:
        """The body of a 200; None when there is none to be had."""
        try:
            status, body = await self._get(path)
        except (aiohttp.ClientError, OSError, ValueError):
            return None
        return body if status == HTTPStatus.OK else None

    async def _get(self, path: str) -> tuple[int, bytes]:
        assert self.ip is not None, "resolved before it is asked"
        url = URL.build(scheme=self._scheme, host=self.ip, port=self._port, path=path)
        return await self._prober.get(url, self._host)


def _first_seen(before: tuple[ModelCard, ...], now: tuple[ModelCard, ...]) -> tuple[ModelCard, ...]:
    """The cards of `now`, with the time of those that were there `before`."""
    created = {card.name: card.created for card in before}
    return tuple(
        msgspec.structs.replace(card, created=created.get(card.name, card.created)) for card in now
    )
