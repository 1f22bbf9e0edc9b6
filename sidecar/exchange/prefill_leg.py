"""The prefill leg of one exchange over its attempts: whether it runs, what waits for it, and
whether another slot may be tried."""

from sidecar.exchange.effects import ClosePrefill, Effect, EndTransfer, FailTransfer, Note
from sidecar.exchange.events import PrefillAnswered, PrefillFailed
from sidecar.exchange.reasons import Reason
from sidecar.exchange.records import PrefillEnded
from sidecar.exchange.situation import Limits
from sidecar.routing.instance import Connector
from sidecar.routing.slots import Slot, Target, every_slot
from sidecar.wire import kv_transfer

NEVER_BEGAN = frozenset(
    (
        Reason.PREFILL_REFUSED,
        Reason.PREFILL_UNREACHABLE,
        Reason.PREFILL_REJECTED,
        Reason.WRONG_CONNECTOR,
    )
)
"""prefill did no work, or none for decode, so nothing of it can still be on its way there"""
_OF_THE_WHOLE = frozenset(
    (Reason.PREFILL_REFUSED, Reason.PREFILL_UNREACHABLE, Reason.PREFILL_UNAVAILABLE)
)
"""no rank of the instance would do better"""
_FINAL = frozenset((Reason.PREFILL_REJECTED, Reason.PREFILL_TIMEOUT, Reason.WRONG_CONNECTOR))
"""Another slot would answer the same, or there is no time left for it. With a wrong connector: an
operator must hear of it, and served from elsewhere nobody would."""

Ended = PrefillAnswered | PrefillFailed


def _fault_of(event: Ended) -> Reason | None:
    """Why the leg failed, by its status; None: 2xx."""
    if isinstance(event, PrefillFailed):
        return event.reason
    if 200 <= event.status < 300:
        return None
    if 400 <= event.status < 500 or event.status == 501:  # 501: its model cannot do it
        return Reason.PREFILL_REJECTED
    if event.status == 503:  # an operator paused it (protocol e), or its probes will say more
        return Reason.PREFILL_UNAVAILABLE
    return Reason.PREFILL_ERROR


class PrefillLeg:
    """Invariant: each `begin` is followed by one `end`, `close` or `lose`."""

    def __init__(self, exchange: str) -> None:
        self._exchange = exchange
        self.deadline = 0.0
        """of all attempts together, monotonic seconds"""
        self.attempt = 0
        self.is_running = False
        self.handed_over: kv_transfer.HandedOver | None = None
        """the KV parameters of its answer"""
        self.fault: Reason | None = None
        """of the attempt that ended last; None: it answered as it should"""
        self.detail = ""
        """what there is to say of that fault; empty: what its reason says"""
        self.failure: Reason | None = None
        """why the last attempt failed that another one followed"""
        self.tried: frozenset[Slot] = frozenset()
        self._connector = Connector.MORIIO
        self._awaited: str | None = None
        """WRITE: the transfer whose push decode waits for"""

    @property
    def is_awaited(self) -> bool:
        """Decode was dispatched and may wait for this leg, also when its own client is gone."""
        return self.is_running and self._awaited is not None

    def next_transfer_id(self) -> str:
        """A fresh one for each attempt: engines remember ids for ever (protocol c)."""
        self.attempt += 1
        return f"tx-{self._exchange}-{self.attempt}"

    def begin(self, connector: Connector, awaited: str | None) -> None:
        self.is_running, self._connector, self._awaited = True, connector, awaited

    def end(self, event: Ended) -> list[Effect]:
        """It ended by itself; `fault` and `handed_over` say how."""
        self.fault, self.detail, self.handed_over = _fault_of(event), "", None
        has_kv = False
        if isinstance(event, PrefillAnswered) and self.fault is None:
            has_kv = event.body is None or self._takes(event.body)
        ended = self._ended(event.seconds, self.fault, has_kv=has_kv)
        if self.fault is None:
            return [*ended, *self._no_longer_awaited(is_answered=True)]
        return [*ended, *self._failed(is_certain=self.fault in NEVER_BEGAN)]

    def _takes(self, body: bytes) -> bool:
        """Whether that answer says that prefill holds KV blocks, for whomever."""
        found = kv_transfer.handed_over(body, self._connector)
        if isinstance(found, kv_transfer.OtherConnector):
            self.fault = Reason.WRONG_CONNECTOR
            self.detail = (
                f"The prefill instance has another KV connector than this router: its answer has "
                f"`{found.key}`, which is {found.connector}'s, and the router's `connector` is "
                f"{self._connector}."
            )
            return True
        self.handed_over = found
        return found is not None

    def close(self) -> list[Effect]:
        """It is closed, because decode does not wait for it."""
        ended = self._ended(None, None)
        return [ClosePrefill(), *ended, *self._no_longer_awaited(is_answered=False)]

    def lose(self) -> list[Effect]:
        """Nobody knows how it ended."""
        return [*self._ended(None, None), *self._failed(is_certain=False)]

    def _ended(
        self, seconds: float | None, reason: Reason | None, *, has_kv: bool = False
    ) -> list[Effect]:
        self.is_running = False
        record = PrefillEnded(
            exchange=self._exchange, seconds=seconds, reason=reason, has_kv=has_kv
        )
        return [Note(record)]

    def _no_longer_awaited(self, *, is_answered: bool) -> list[Effect]:
        transfer_id, self._awaited = self._awaited, None
        return [] if transfer_id is None else [EndTransfer(transfer_id, is_answered)]

    def _failed(self, *, is_certain: bool) -> list[Effect]:
        transfer_id, self._awaited = self._awaited, None
        return [] if transfer_id is None else [FailTransfer(transfer_id, is_certain)]

    def may_retry(self, reason: Reason, limits: Limits, now: float) -> bool:
        has_time = now < self.deadline
        return reason not in _FINAL and has_time and self.attempt < limits.prefill_attempts

    def avoid(self, target: Target, reason: Reason) -> None:
        """The next attempt must not go there: the slot, or every rank of an instance that cannot
        be reached or runs nothing."""
        self.failure = reason
        is_whole = reason in _OF_THE_WHOLE
        slots = every_slot(target.member.instance) if is_whole else frozenset((target.slot,))
        self.tried |= slots
