r"""One exchange as a state machine: an event in, effects out; no I/O, no clock, no dice.

    HEADERS --refused, own answer, single-instance path--------------------------> DONE
       |
     BODY --refused--------------------------------------------------------------> DONE
       |    (of a single-instance path only where the pool serves several models, and of a form)
       |
    PLACING --nothing placeable, aggregated--------------------------------------> DONE
       |  \
       |   WRITE, at once: both legs dispatched
       |    \--> DECODE --decode not 2xx, prefill failed--------------------------> DONE
       |           |  \--prefill answered 200--> DECODE_ALONE --decode answered---> DONE
       |           v
       |          HELD (decode's 2xx waits for prefill) --prefill known-----------> DONE
       v
    PREFILL (in series) --failed for good, answered without KV-------------------> DONE
       |  '--failed, attempts left--> PLACING
       v
    CONFIRM (is the decode slot still good?) --dispatched, or no decode left------> DONE

From every phase ClientLeft and Broke lead to DONE; in WRITE, while prefill runs, by way of

    PREFILL_ALONE (decode's blocks wait for prefill's push) --prefill known-------> DONE

Invariants: what the body took of the budget is given back with the last reply; what `Placed` took
is given back by exactly one `Replied` (with one `PrefillEnded` for each prefill leg); what decode
waits for by one `EndTransfer` or `FailTransfer`; one reply a phase; nothing after DONE. An event
that the table does not name is an error, never a silent pass.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from sidecar.exchange import legs
from sidecar.exchange.answers import Answers
from sidecar.exchange.arrival import Arrival, Verdict
from sidecar.exchange.body_budget import Budget
from sidecar.exchange.demands import demand_of
from sidecar.exchange.effects import Confirm, Effect, Note, Place, Send
from sidecar.exchange.events import Broke, ClientLeft, Event, PrefillAnswered, PrefillFailed
from sidecar.exchange.holding import Holding
from sidecar.exchange.intake import Refusal, Request
from sidecar.exchange.phase import CLIENT_PHASE, IllegalEvent, Phase
from sidecar.exchange.prefill_leg import Ended, PrefillLeg
from sidecar.exchange.reasons import Reason
from sidecar.exchange.receipt import client_id, refused_record, with_route
from sidecar.exchange.records import Placed
from sidecar.exchange.situation import Limits, Situation
from sidecar.routing.instance import Role, TransferMode
from sidecar.routing.slots import Demand, NoPlacement, Placement, Target
from sidecar.wire import kv_transfer
from sidecar.wire.ext_proc import (
    HeadersReply,
    ImmediateReply,
    PassReply,
    RequestBody,
    RequestHeaders,
    ResponseHeaders,
)


class Exchange:
    """One client request with its two legs (design §3)."""

    def __init__(
        self,
        exchange_id: str,
        worker: int,
        situation: Situation,
        limits: Limits,
        budget: Budget,
    ) -> None:
        self.exchange_id = exchange_id
        self.phase = Phase.HEADERS
        self._limits = limits
        self._arrival = Arrival(exchange_id, situation, limits, budget)
        self._holding = Holding(worker)
        self._answers = Answers(exchange_id)
        self._placement: Placement | None = None
        self._spare: Target | None = None
        self._pair: kv_transfer.Pair | None = None
        self._is_in_series = True
        """decode is asked after prefill has answered"""
        self._prefill = PrefillLeg(exchange_id)

    @property
    def open_record(self) -> Placed | None:
        """What this exchange holds open, for a control process that has forgotten it."""
        is_held = self._holding.is_open or self.phase is Phase.PREFILL_ALONE
        record = self._holding.record if is_held else None
        if record is None or record.mode is None or self._prefill.is_running:
            return record
        return msgspec.structs.replace(record, prefill=None)

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take one event; `now` is monotonic seconds. Raises IllegalEvent."""
        step = _TABLE.get((self.phase, type(event)))
        if step is None:
            if isinstance(event, (ClientLeft, Broke)):  # whatever the phase
                return self._broken_off(event)
            raise IllegalEvent(f"{type(event).__name__} in phase {self.phase}")
        return step(self, event, now)

    # --- arrival ----------------------------------------------------------------------------

    def _on_headers(self, event: RequestHeaders, _now: float) -> list[Effect]:
        client = client_id(event.headers.get("x-request-id", ""))
        self._answers = Answers(self.exchange_id, client)
        return self._after(self._arrival.on_headers(event, self._answers.echo))

    def _on_body(self, event: RequestBody, now: float) -> list[Effect]:
        self._prefill.deadline = now + self._limits.prefill_timeout_s
        return self._after(self._arrival.on_body(event.body))

    def _after(self, verdict: Verdict) -> list[Effect]:
        if isinstance(verdict, Refusal):
            return self._refused(verdict)
        if isinstance(verdict, ImmediateReply):
            return self._finish([Send(self._answers.marked(verdict))])
        if isinstance(verdict, Demand):
            self.phase = Phase.PLACING
            return [Place(verdict)]
        self.phase = Phase.BODY
        reply = HeadersReply(
            set_headers={"x-request-id": self.exchange_id},
            metadata=self._answers.metadata,
            # Only a WRITE placement uses them; whether it will be one is not known yet, and asking
            # costs nothing where the stream ends with the body reply.
            wants_response_headers=self._arrival.asked.api is not None,
        )
        return [Send(reply)]

    # --- placement --------------------------------------------------------------------------

    @property
    def _request(self) -> Request | None:
        return self._arrival.request

    def _demand(self) -> Demand:
        assert self._request is not None
        return demand_of(self._request, self._limits, self._prefill.tried)

    def _on_no_placement(self, event: NoPlacement, _now: float) -> list[Effect]:
        reason = Reason(event.reason)
        if reason is Reason.NO_PREFILL_INSTANCE and self._prefill.failure is not None:
            reason = self._prefill.failure  # there is one, and it failed: say that
        return self._refused(Refusal(reason, self._arrival.lack(reason)))

    def _on_placed(self, event: Placement, now: float) -> list[Effect]:
        if self._request is None:
            return self._serve_single(event.answering)
        request, self._placement = self._request, event
        if event.prefill is None or event.decode is None:
            return self._serve_aggregated(event.answering)
        ends = event.prefill.member, event.decode.member
        if not kv_transfer.can_name_each_other(request.api, *ends):
            return self._serve_aggregated(event.prefill)
        self._pair = kv_transfer.Pair(
            prefill=event.prefill.member,
            prefill_rank=event.prefill.dp_rank,
            decode=event.decode.member,
            decode_rank=event.decode.dp_rank,
            transfer_id=self._prefill.next_transfer_id(),
        )
        self._is_in_series = legs.are_in_series(request.api, event, self._limits)
        limits, deadline, is_awaited = self._limits, self._prefill.deadline, not self._is_in_series
        start = legs.prefill_leg(
            request, event, self._pair, limits, deadline, now, is_awaited=is_awaited
        )
        awaited = start.transfer.transfer_id if start.transfer else None
        self._prefill.begin(self._pair.connector, awaited)
        is_late = self._is_in_series and event.mode is TransferMode.WRITE
        asked, transfer_id = self._arrival.asked, self._pair.transfer_id
        taken = self._holding.take_pair(self._answers, asked, event, transfer_id, is_late=is_late)
        effects: list[Effect] = [taken, start]
        if self._is_in_series:
            self._show_route(event.prefill, None)  # decode has not been asked
            self.phase = Phase.PREFILL
            return effects
        self._show_route(event.prefill, event.decode)
        self.phase = Phase.DECODE
        reply = legs.decode_leg(
            request, event, self._pair, self._limits, None, self._holding.metadata(self._answers)
        )
        return [*effects, Send(reply)]

    def _show_route(self, prefill: Target | None, decode: Target | None) -> None:
        self._answers = with_route(self._answers, self._limits, prefill, decode)

    def _take_one(self, target: Target) -> Note:
        taken = self._holding.take_one(self._answers, self._arrival.asked, target)
        is_prefill = target.member.instance.role is Role.PREFILL
        self._show_route(target if is_prefill else None, None if is_prefill else target)
        return taken

    def _serve_single(self, target: Target) -> list[Effect]:
        """A single-instance path; its body goes on as it is."""
        taken = self._take_one(target)
        reply = legs.single_leg(
            self.exchange_id,
            self._arrival.path,
            target,
            self._limits,
            self._holding.metadata(self._answers),
            has_body=self._arrival.is_placed_by_body,
        )
        return self._finish([taken, Send(reply)], is_handed_over=True)

    def _serve_aggregated(self, target: Target) -> list[Effect]:
        assert self._request is not None
        taken = self._take_one(target)
        reply = legs.aggregated_leg(
            self._request, target, self._limits, self._holding.metadata(self._answers)
        )
        return self._finish([taken, Send(reply)], is_handed_over=True)

    # --- prefill ----------------------------------------------------------------------------

    def _on_prefill_ended(self, event: Ended, now: float) -> list[Effect]:
        assert self._placement is not None
        assert self._placement.prefill is not None
        effects = self._prefill.end(event)
        reason = self._prefill.fault
        if reason is None:
            assert isinstance(event, PrefillAnswered)
            return self._prefill_done(event, effects)
        if self.phase is Phase.PREFILL and self._prefill.may_retry(reason, self._limits, now):
            self._prefill.avoid(self._placement.prefill, reason)
            self.phase = Phase.PLACING
            return [*effects, Place(self._demand())]
        # The client first: decode must see its request closed before it hears of the failure.
        if reason is Reason.PREFILL_REJECTED:
            assert isinstance(event, PrefillAnswered)
            return self._finish([Send(self._answers.rejection(event)), *effects], reason)
        refusal = self._answers.refusal(reason, self._prefill.detail)
        return self._finish([Send(refusal), *effects], reason)

    def _prefill_done(self, event: PrefillAnswered, effects: list[Effect]) -> list[Effect]:
        assert self._placement is not None
        assert self._placement.prefill is not None
        if not self._is_in_series:
            is_good = event.body is None or self._prefill.handed_over is not None
            return self._write_prefill_done(effects, is_good=is_good)
        if self._prefill.handed_over is None:
            # Prefill freed its blocks (it ended by EOS): it serves the request whole (design §6).
            return effects + self._serve_aggregated(self._placement.prefill)
        self.phase = Phase.CONFIRM
        return [*effects, Confirm(self._placement, self._demand())]

    def _on_prefill_alone(self, event: Ended, _now: float) -> list[Effect]:
        """The client has been answered or is gone."""
        self.phase = Phase.DONE
        return self._prefill.end(event)

    def _on_confirmed(self, event: Placement, _now: float) -> list[Effect]:
        assert self._request is not None
        assert self._pair is not None
        assert self._placement is not None
        assert event.decode is not None
        effects: list[Effect] = []
        if event.decode != self._placement.decode:
            self._placement = event
            self._pair = msgspec.structs.replace(
                self._pair, decode=event.decode.member, decode_rank=event.decode.dp_rank
            )
            effects = [self._holding.move(event.decode)]
        self._show_route(event.prefill, event.decode)
        self._spare = event.spare
        reply = legs.decode_leg(
            self._request,
            event,
            self._pair,
            self._limits,
            self._prefill.handed_over,
            self._holding.metadata(self._answers),
        )
        return self._finish([*effects, Send(reply)], is_handed_over=True)

    def _on_decode_gone(self, event: NoPlacement, now: float) -> list[Effect]:
        """In WRITE prefill was told whom it pushes to: both are placed anew."""
        assert self._placement is not None
        is_write = self._placement.mode is TransferMode.WRITE
        if is_write and self._prefill.may_retry(Reason(event.reason), self._limits, now):
            self.phase = Phase.PLACING
            return [Place(self._demand())]
        return self._on_no_placement(event, now)

    def _write_prefill_done(self, effects: list[Effect], *, is_good: bool) -> list[Effect]:
        if not is_good:
            return self._refuse(Reason.PREFILL_WITHOUT_KV, after=effects)
        if self.phase is Phase.HELD:
            return self._finish([*effects, Send(PassReply())], is_handed_over=True)
        self.phase = Phase.DECODE_ALONE
        return effects

    # --- the answer's headers (WRITE) -------------------------------------------------------

    def _on_response(self, event: ResponseHeaders, _now: float) -> list[Effect]:
        if self.phase is Phase.DECODE_ALONE or not 200 <= event.status < 300:
            closed = self._prefill.close() if self._ends_prefill(event) else []
            return self._finish([Send(PassReply()), *closed], is_handed_over=True)
        self.phase = Phase.HELD
        return []

    def _ends_prefill(self, event: ResponseHeaders) -> bool:
        """Decode does not wait for it: it said so, or it never had the request. Where Envoy gave
        decode up, or lost it, it may wait, and prefill goes on."""
        is_over = not event.reason or event.reason in _UNREACHED
        return self._prefill.is_running and is_over

    def _on_upload_refused(self, _event: ResponseHeaders, _now: float) -> list[Effect]:
        """Envoy answered by itself while the body was on its way: too slow, or too large."""
        return self._finish([Send(PassReply())])

    # --- ends -------------------------------------------------------------------------------

    def _refused(self, refusal: Refusal) -> list[Effect]:
        return self._refuse(refusal.reason, refusal.detail, refusal.param)

    def _refuse(
        self,
        reason: Reason,
        detail: str = "",
        param: str | None = None,
        *,
        after: Sequence[Effect] = (),
    ) -> list[Effect]:
        """Answer for `reason`; whatever is held is given back."""
        effects = [*after, Send(self._answers.refusal(reason, detail, param))]
        if self._holding.is_open:
            return self._finish(effects, reason)
        record = refused_record(self.exchange_id, self._arrival.asked, reason)
        return self._finish([*effects, Note(record)])

    def _broken_off(self, event: ClientLeft | Broke) -> list[Effect]:
        if self.phase is Phase.DONE:
            return []
        if self.phase is Phase.PREFILL_ALONE:
            if isinstance(event, ClientLeft):
                return []
            self.phase = Phase.DONE
            return self._prefill.lose()
        if isinstance(event, Broke):
            return self._refuse(Reason.INTERNAL)
        phase, late = CLIENT_PHASE[self.phase], event.prefill
        is_late = late is not None and self._prefill.is_running
        effects = self._prefill.end(late) if late is not None and is_late else []
        return self._finish(effects, client_phase=phase)

    def _finish(
        self,
        effects: list[Effect],
        reason: Reason | None = None,
        *,
        is_handed_over: bool = False,
        client_phase: str = "",
    ) -> list[Effect]:
        """The way to the end, where the driver ends the stream: gives back what was taken.

        A prefill leg that decode may wait for goes on: closed, it would leave decode's blocks taken
        for good (protocol e).
        """
        self._arrival.release()
        runs_on = self._prefill.is_awaited
        self.phase = Phase.PREFILL_ALONE if runs_on else Phase.DONE
        if self._prefill.is_running and not runs_on:
            effects = [*effects, *self._prefill.close()]
        given_back = self._holding.give_back(
            reason,
            is_handed_over=is_handed_over,
            client_phase=client_phase,
            is_prefill_running=runs_on,
            spare=self._spare,
        )
        return [*effects, *given_back]


_UNREACHED = (Reason.DECODE_REFUSED, Reason.INSTANCE_GONE, Reason.OVERLOADED)


_Step = Callable[[Exchange, Any, float], list[Effect]]
"""each takes just the event type of its key"""

_TABLE: dict[tuple[Phase, type], _Step] = {
    (Phase.HEADERS, RequestHeaders): Exchange._on_headers,
    (Phase.BODY, RequestBody): Exchange._on_body,
    (Phase.BODY, ResponseHeaders): Exchange._on_upload_refused,
    (Phase.PLACING, Placement): Exchange._on_placed,
    (Phase.PLACING, NoPlacement): Exchange._on_no_placement,
    (Phase.PREFILL, PrefillAnswered): Exchange._on_prefill_ended,
    (Phase.PREFILL, PrefillFailed): Exchange._on_prefill_ended,
    (Phase.CONFIRM, Placement): Exchange._on_confirmed,
    (Phase.CONFIRM, NoPlacement): Exchange._on_decode_gone,
    (Phase.DECODE, PrefillAnswered): Exchange._on_prefill_ended,
    (Phase.DECODE, PrefillFailed): Exchange._on_prefill_ended,
    (Phase.DECODE, ResponseHeaders): Exchange._on_response,
    (Phase.DECODE_ALONE, ResponseHeaders): Exchange._on_response,
    (Phase.HELD, PrefillAnswered): Exchange._on_prefill_ended,
    (Phase.HELD, PrefillFailed): Exchange._on_prefill_ended,
    (Phase.PREFILL_ALONE, PrefillAnswered): Exchange._on_prefill_alone,
    (Phase.PREFILL_ALONE, PrefillFailed): Exchange._on_prefill_alone,
}
