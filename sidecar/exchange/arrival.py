"""A request until it can be placed: its headers, then its body where that decides.

Says what is to be done, and does nothing but count the body's bytes. Invariant: `release` gives
back all that the budget gave.
"""

import msgspec

from sidecar.exchange.asked import Asked
from sidecar.exchange.body_budget import Budget
from sidecar.exchange.demands import demand_of, single_demand
from sidecar.exchange.intake import (
    Refusal,
    Request,
    read_model,
    read_request,
    refuse_body_headers,
    refuse_declared_size,
    refuse_headers,
)
from sidecar.exchange.own_paths import own_answer
from sidecar.exchange.reasons import Reason
from sidecar.exchange.situation import Limits, Situation
from sidecar.exchange.upload import Upload
from sidecar.routing.instance import Role
from sidecar.routing.slots import Demand
from sidecar.wire.ext_proc import ImmediateReply, RequestHeaders
from sidecar.wire.paths import api_of, own_of, takes_form

_LACKED = {
    Reason.NO_PREFILL_INSTANCE: Role.PREFILL,
    Reason.NO_DECODE_INSTANCE: Role.DECODE,
}


class AwaitBody(msgspec.Struct, frozen=True):
    """Let the body come."""


Verdict = ImmediateReply | Refusal | AwaitBody | Demand
"""An answer about ourselves, a refusal, or what to ask of placement."""


class Arrival:
    def __init__(
        self, exchange_id: str, situation: Situation, limits: Limits, budget: Budget
    ) -> None:
        self.asked = Asked(api=None)
        self.headers: dict[str, str] = {}
        self.request: Request | None = None
        """once it is read; None for good on a single-instance path"""
        self.is_placed_by_body = False
        """a single-instance path, by the model in its body"""
        self._exchange_id = exchange_id
        self._situation = situation
        self._limits = limits
        self._upload = Upload(budget)

    @property
    def path(self) -> str:
        return self.headers.get(":path", "/")

    def on_headers(self, event: RequestHeaders, echo: dict[str, str]) -> Verdict:
        """`echo`: headers that an answer of ours carries."""
        self.headers = event.headers
        api = api_of(event.path) if event.method == "POST" else None
        self.asked = Asked(api=api)
        own = own_of(event.path)
        if own is not None:
            return own_answer(own, self._situation, echo) or Refusal(Reason.STORED_RESPONSE)
        refused = refuse_headers(event, api, self._situation, self._limits)
        if refused is not None:
            return refused
        if api is None:
            refused = refuse_declared_size(event, self._limits)
            if refused is not None:
                return refused
            # Placed at once, and its body passes by, unless which model it is for decides, or what
            # engines must not be sent may be in it.
            is_any = self._situation.default_model is not None and self._situation.serves_alike
            passes_by = event.method != "POST" or (is_any and not takes_form(self.path))
            if event.is_last or passes_by:
                return single_demand(self.path, "", self._limits)
            refused = refuse_body_headers(event, self._limits)
            if refused is not None:
                return refused
        return AwaitBody() if self._upload.expect(event) else Refusal(Reason.TOO_MANY_BODY_BYTES)

    def on_body(self, body: bytes) -> Verdict:
        if not self._upload.arrived(len(body)):
            return Refusal(Reason.TOO_MANY_BODY_BYTES)
        api = self.asked.api
        if api is None:
            model = read_model(self.path, self.headers, body, self._situation, self._limits)
            if isinstance(model, Refusal):
                return model
            self.is_placed_by_body = True
            self._was_asked(model, body, is_streaming=False)
            return single_demand(self.path, model, self._limits)
        request = read_request(
            self._exchange_id, api, self.headers, body, self._situation, self._limits
        )
        if isinstance(request, Refusal):
            return request
        self.request = request
        self._was_asked(request.model, body, is_streaming=request.is_streaming)
        return demand_of(request, self._limits, frozenset())

    def _was_asked(self, model: str, body: bytes, *, is_streaming: bool) -> None:
        self.asked = Asked(
            api=self.asked.api,
            model_label=self._situation.model_label(model),
            is_streaming=is_streaming,
            body_bytes=len(body),
        )

    def lack(self, reason: Reason) -> str:
        """What is said when nothing can be placed: of several models, of which."""
        model = self.asked.model
        role = _LACKED.get(reason)
        if role is None or not model or self._situation.default_model is not None:
            return ""
        return f"No {role} instance of {model} is ready."

    def release(self) -> None:
        """The body is no longer held. May be called again."""
        self._upload.release()
