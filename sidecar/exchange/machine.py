r"""One exchange as a state machine: an event in, effects out; no I/O, no clock, no dice.

    HEADERS --refused, own answer, single-instance path--------------------------> DONE
       |
     BODY --refused--------------------------------------------------------------> DONE
       |
    PLACING --nothing placeable, aggregated--------------------------------------> DONE
       |  \
       |   WRITE: both legs dispatched
       |    \--> DECODE --decode not 2xx, prefill failed--------------------------> DONE
       |           |  \--prefill answered 200--> DECODE (prefill known) --any-----> DONE
       |           v
       |          HELD (decode's 2xx waits for prefill) --prefill known-----------> DONE
       v
    PREFILL (READ) --failed for good, answered without KV------------------------> DONE
       |  '--failed, attempts left--> PLACING
       v
    CONFIRM (is the decode slot still good?) --dispatched, or no decode left------> DONE

Invariants: what `Placed` took is given back by exactly one `Replied` (with `PrefillEnded` before it
when a prefill leg ran); one reply a phase; nothing after DONE. An event that the table does not
name is an error, never a silent pass.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Any

import msgspec

from sidecar.errors import PdSidecarError
from sidecar.exchange import legs
from sidecar.exchange.effects import ClosePrefill, Confirm, Effect, End, Note, Place, Send
from sidecar.exchange.events import ClientLeft, Event, PrefillAnswered, PrefillFailed
from sidecar.exchange.intake import Refusal, Request, read_request, refuse_headers
from sidecar.exchange.own_paths import own_answer
from sidecar.exchange.reasons import Reason, refusal
from sidecar.exchange.receipt import client_id, placed_record, receipt, refused_record, trail
from sidecar.exchange.records import Moved, Placed, PrefillEnded, Replied
from sidecar.exchange.situation import Limits, Situation
from sidecar.routing.instance import TransferMode
from sidecar.routing.slots import Demand, NoPlacement, Placement, Target, every_slot
from sidecar.routing.view import Slot
from sidecar.wire import kv_transfer, openai
from sidecar.wire.ext_proc import (
    HeadersReply,
    ImmediateReply,
    PassReply,
    RequestBody,
    RequestHeaders,
    ResponseHeaders,
)


class Phase(StrEnum):
    HEADERS = "headers"
    BODY = "body"
    PLACING = "placing"
    PREFILL = "prefill"
    CONFIRM = "confirm"
    DECODE = "decode"
    HELD = "held"
    DONE = "done"


class IllegalEvent(PdSidecarError):
    """An event in a phase that does not expect it: a bug, or an Envoy that is configured
    otherwise."""


_CLIENT_PHASE = {
    Phase.HEADERS: "upload",
    Phase.BODY: "upload",
    Phase.PLACING: "upload",
    Phase.PREFILL: "prefill",
    Phase.CONFIRM: "prefill",
    Phase.DECODE: "decode",
    Phase.HELD: "decode",
}


class Exchange:
    """One client request with its two legs (design §3)."""

    def __init__(self, exchange_id: str, worker: int, situation: Situation, limits: Limits) -> None:
        self.exchange_id = exchange_id
        self.phase = Phase.HEADERS
        self._worker = worker
        self._situation = situation
        self._limits = limits
        self._headers: dict[str, str] = {}
        self._echo: dict[str, str] = {}
        self._api: openai.Api | None = None
        self._request: Request | None = None
        self._placement: Placement | None = None
        self._pair: kv_transfer.Pair | None = None
        self._tried: frozenset[Slot] = frozenset()
        self._attempt = 0
        self._prefill_deadline = 0.0
        self._is_prefill_running = False
        self._is_prefill_good = False
        self._handed_over: openai.Fields | None = None
        self._is_placed = False
        self._record: Placed | None = None

    @property
    def open_record(self) -> Placed | None:
        """What this exchange holds open, for a control process that has forgotten it."""
        return self._record if self._is_placed else None

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take one event; `now` is monotonic seconds. Raises IllegalEvent."""
        if isinstance(event, ClientLeft):
            return self._client_left()
        step = _TABLE.get((self.phase, type(event)))
        if step is None:
            raise IllegalEvent(f"{type(event).__name__} in phase {self.phase}")
        return step(self, event, now)

    # --- the headers step -------------------------------------------------------------------

    def _on_headers(self, event: RequestHeaders, _now: float) -> list[Effect]:
        self._headers = event.headers
        # An answer always carries an id: the client's own, or the one in our logs.
        answer_id = client_id(event.headers.get("x-request-id", "")) or self.exchange_id
        self._echo = {"x-request-id": answer_id}
        self._api = openai.api_of(event.path) if event.method == "POST" else None
        answer = own_answer(event.path, self._situation, self._echo)
        if answer is not None:
            return self._finish([Send(self._marked(answer))])
        refused = refuse_headers(event, self._api, self._situation, self._limits)
        if refused is not None:
            return self._refuse(refused.reason, refused.detail)
        if self._api is None:
            self.phase = Phase.PLACING
            return [Place(None)]
        self.phase = Phase.BODY
        reply = HeadersReply(
            set_headers={"x-request-id": self.exchange_id},
            metadata=self._metadata(),
            wants_response_headers=self._situation.has_write,
        )
        return [Send(reply)]

    # --- the body step ----------------------------------------------------------------------

    def _on_body(self, event: RequestBody, now: float) -> list[Effect]:
        assert self._api is not None
        request = read_request(self.exchange_id, self._api, self._headers, event.body, self._limits)
        if isinstance(request, Refusal):
            return self._refuse(request.reason, request.detail)
        self._request = request
        self._prefill_deadline = now + self._limits.prefill_timeout_s
        self.phase = Phase.PLACING
        return [Place(self._demand())]

    def _demand(self) -> Demand:
        request = self._request
        assert request is not None
        return Demand(
            model=request.model or None,
            is_aggregated=openai.needs_one_instance(request.fields, request.api),
            excluded=self._tried,
        )

    def _on_no_placement(self, event: NoPlacement, _now: float) -> list[Effect]:
        return self._refuse(Reason(event.reason))

    def _on_placed(self, event: Placement, now: float) -> list[Effect]:
        if self._request is None:
            return self._serve_single(event)
        request, self._placement = self._request, event
        if event.decode is None or self._must_aggregate(event):
            assert event.prefill is not None
            return self._serve_aggregated(event.prefill)
        assert event.prefill is not None
        self._attempt += 1
        self._pair = kv_transfer.Pair(
            prefill=event.prefill.member,
            prefill_rank=event.prefill.dp_rank,
            decode=event.decode.member,
            decode_rank=event.decode.dp_rank,
            transfer_id=f"tx-{self.exchange_id}-{self._attempt}",
        )
        remaining = self._prefill_deadline - now
        start = legs.prefill_leg(request, event, self._pair, self._limits, remaining)
        self._is_prefill_running = True
        effects: list[Effect] = [Note(self._take(event.mode, event.prefill, event.decode)), start]
        if event.mode is TransferMode.READ:
            self.phase = Phase.PREFILL
            return effects
        self.phase = Phase.DECODE
        reply = legs.decode_leg(
            request, event, self._pair, self._limits, None, self._placed_metadata()
        )
        return [*effects, Send(reply)]

    def _must_aggregate(self, placement: Placement) -> bool:
        """`/v1/responses` ignores the request id, so it cannot carry embedded addresses."""
        prefill, decode = placement.prefill, placement.decode
        return (
            self._api is openai.Api.RESPONSES
            and prefill is not None
            and decode is not None
            and kv_transfer.embeds_addresses((prefill.member.version, decode.member.version))
        )

    def _take(
        self, mode: TransferMode | None, prefill: Target | None, decode: Target | None
    ) -> Placed:
        self._record = placed_record(
            self.exchange_id, self._worker, self._api, self._request, mode, prefill, decode
        )
        self._is_placed = True
        return self._record

    def _serve_single(self, placement: Placement) -> list[Effect]:
        """A single-instance path, placed at the headers step; the body passes by."""
        target = placement.prefill or placement.decode
        assert target is not None
        record = self._take(None, placement.prefill, placement.decode)
        headers = legs.destination(target, self._headers[":path"])
        headers["x-request-id"] = self.exchange_id
        reply = HeadersReply(set_headers=headers, metadata=self._placed_metadata())
        return self._finish([Note(record), Send(reply)], is_handed_over=True)

    def _serve_aggregated(self, target: Target) -> list[Effect]:
        assert self._request is not None
        effects: list[Effect] = [Note(self._take(None, target, None))]
        reply = legs.aggregated_leg(self._request, target, self._limits, self._placed_metadata())
        return self._finish([*effects, Send(reply)], is_handed_over=True)

    # --- prefill ----------------------------------------------------------------------------

    def _prefill_over(self, seconds: float | None, reason: Reason | None) -> list[Effect]:
        self._is_prefill_running = False
        return [Note(PrefillEnded(exchange=self.exchange_id, seconds=seconds, reason=reason))]

    def _on_prefill_answered(self, event: PrefillAnswered, _now: float) -> list[Effect]:
        if event.status >= 500:
            return self._prefill_failed(Reason.PREFILL_ERROR, event.seconds)
        if event.status >= 300:
            effects = self._prefill_over(event.seconds, Reason.PREFILL_REJECTED)
            return self._finish([*effects, Send(self._engines_own(event))], Reason.PREFILL_REJECTED)
        effects = self._prefill_over(event.seconds, None)
        handed_over = kv_transfer.handed_over(event.body) if event.body is not None else None
        if self._placement is not None and self._placement.mode is TransferMode.WRITE:
            return self._write_prefill_done(
                effects, is_good=event.body is None or handed_over is not None
            )
        assert self._placement is not None
        if handed_over is None:
            # Prefill freed its blocks (it ended by EOS): it serves the request whole (design §6).
            assert self._placement.prefill is not None
            return effects + self._serve_aggregated(self._placement.prefill)
        self._handed_over = handed_over
        self.phase = Phase.CONFIRM
        return [*effects, Confirm(self._placement, self._demand())]

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
            assert self._record is not None
            self._record = msgspec.structs.replace(self._record, decode=event.decode.slot)
            effects = [Note(Moved(exchange=self.exchange_id, decode=event.decode.slot))]
        reply = legs.decode_leg(
            self._request,
            event,
            self._pair,
            self._limits,
            self._handed_over,
            self._placed_metadata(),
        )
        return self._finish([*effects, Send(reply)], is_handed_over=True)

    def _write_prefill_done(self, effects: list[Effect], *, is_good: bool) -> list[Effect]:
        if not is_good:
            refused = Send(self._refusal(Reason.PREFILL_WITHOUT_KV))
            return self._finish([*effects, refused], Reason.PREFILL_WITHOUT_KV)
        self._is_prefill_good = True
        if self.phase is Phase.HELD:
            return self._finish([*effects, Send(PassReply())], is_handed_over=True)
        return effects

    def _engines_own(self, event: PrefillAnswered) -> ImmediateReply:
        """Prefill's refusal, its body byte for byte."""
        reason = Reason.PREFILL_REJECTED
        return ImmediateReply(
            status=event.status,
            body=event.body or b"",
            headers={"content-type": event.content_type, "x-pd-error": reason, **self._echo},
            metadata=self._metadata() | {"reply": reason},
        )

    def _on_prefill_failed(self, event: PrefillFailed, _now: float) -> list[Effect]:
        return self._prefill_failed(event.reason, event.seconds)

    def _prefill_failed(self, reason: Reason, seconds: float) -> list[Effect]:
        assert self._placement is not None
        assert self._placement.prefill is not None
        effects = self._prefill_over(seconds, reason)
        may_retry = (
            self.phase is Phase.PREFILL
            and reason is not Reason.PREFILL_TIMEOUT
            and self._attempt < self._limits.prefill_attempts
        )
        if may_retry:
            self._tried |= _suspects(self._placement.prefill, reason)
            self.phase = Phase.PLACING
            return [*effects, Place(self._demand())]
        return self._finish([*effects, Send(self._refusal(reason))], reason)

    # --- the answer's headers (WRITE) -------------------------------------------------------

    def _on_response(self, event: ResponseHeaders, _now: float) -> list[Effect]:
        if not 200 <= event.status < 300:
            closing: list[Effect] = [ClosePrefill()] if self._is_prefill_running else []
            if self._is_prefill_running:
                closing += self._prefill_over(None, None)
            return self._finish([Send(PassReply()), *closing], is_handed_over=True)
        if self._is_prefill_good:
            return self._finish([Send(PassReply())], is_handed_over=True)
        self.phase = Phase.HELD
        return []

    # --- ends -------------------------------------------------------------------------------

    def _refuse(self, reason: Reason, detail: str = "") -> list[Effect]:
        """Answer for `reason`; whatever an earlier attempt held is given back."""
        reply = Send(self._refusal(reason, detail))
        if self._is_placed:
            return self._finish([reply], reason)
        record = refused_record(self.exchange_id, self._api, self._request, reason)
        return self._finish([reply, Note(record)])

    def _refusal(self, reason: Reason, detail: str = "") -> ImmediateReply:
        return self._marked(refusal(reason, detail=detail, echo=self._echo))

    def _marked(self, reply: ImmediateReply) -> ImmediateReply:
        """With the metadata by which the access log knows it."""
        return ImmediateReply(
            status=reply.status,
            body=reply.body,
            headers=reply.headers,
            metadata=self._metadata() | reply.metadata,
        )

    def _client_left(self) -> list[Effect]:
        phase = self.phase
        if phase is Phase.DONE:
            return []
        effects: list[Effect] = []
        if self._is_prefill_running:
            effects = [ClosePrefill(), *self._prefill_over(None, None)]
        return self._finish(effects, client_phase=_CLIENT_PHASE[phase])[:-1]  # no stream to end

    def _finish(
        self,
        effects: list[Effect],
        reason: Reason | None = None,
        *,
        is_handed_over: bool = False,
        client_phase: str = "",
    ) -> list[Effect]:
        """The one way to DONE: gives back what was taken, then ends the stream."""
        self.phase = Phase.DONE
        if self._is_prefill_running:
            effects = [*effects, ClosePrefill(), *self._prefill_over(None, reason)]
        if self._is_placed:
            self._is_placed = False
            replied = Replied(
                exchange=self.exchange_id,
                is_handed_over=is_handed_over,
                reason=reason,
                phase=client_phase,
            )
            effects = [*effects, Note(replied)]
        return [*effects, End()]

    def _metadata(self) -> dict[str, str]:
        return {"ex": self.exchange_id, "client_id": self._echo.get("x-request-id", "")}

    def _placed_metadata(self) -> dict[str, str]:
        assert self._record is not None
        metadata = self._metadata() | {"rec": trail(self._record)}
        if self._limits.shows_route:
            metadata |= receipt(self._placement, self._record, self._limits.shows_addresses)
        return metadata


def _suspects(target: Target, reason: Reason) -> frozenset[Slot]:
    """What a retry must avoid: the slot, or every rank of an instance that cannot be reached."""
    if reason is Reason.PREFILL_REFUSED:
        return every_slot(target.member.instance)
    return frozenset((target.slot,))


_Step = Callable[[Exchange, Any, float], list[Effect]]
"""each takes just the event type of its key"""

_TABLE: dict[tuple[Phase, type], _Step] = {
    (Phase.HEADERS, RequestHeaders): Exchange._on_headers,
    (Phase.BODY, RequestBody): Exchange._on_body,
    (Phase.PLACING, Placement): Exchange._on_placed,
    (Phase.PLACING, NoPlacement): Exchange._on_no_placement,
    (Phase.PREFILL, PrefillAnswered): Exchange._on_prefill_answered,
    (Phase.PREFILL, PrefillFailed): Exchange._on_prefill_failed,
    (Phase.CONFIRM, Placement): Exchange._on_confirmed,
    (Phase.CONFIRM, NoPlacement): Exchange._on_no_placement,
    (Phase.DECODE, PrefillAnswered): Exchange._on_prefill_answered,
    (Phase.DECODE, PrefillFailed): Exchange._on_prefill_failed,
    (Phase.DECODE, ResponseHeaders): Exchange._on_response,
    (Phase.HELD, PrefillAnswered): Exchange._on_prefill_answered,
    (Phase.HELD, PrefillFailed): Exchange._on_prefill_failed,
}
