"""What the sidecar itself says to the client of one exchange, and the metadata that goes with it.

Each answer carries the request id, and the metadata by which the access log knows the exchange and
Envoy's local replies leave the answer alone.
"""

import msgspec

from sidecar.exchange.events import PrefillAnswered
from sidecar.exchange.reasons import Reason, refusal
from sidecar.wire.ext_proc import ImmediateReply


class Answers(msgspec.Struct, frozen=True):
    exchange: str
    client: str = ""
    """the request id that the client sees; empty: its headers are not known yet"""
    route: dict[str, str] = {}
    """the route receipt: `prefill` and `decode`, once they are chosen and if they may be shown"""

    @property
    def echo(self) -> dict[str, str]:
        """The headers that every answer carries."""
        receipt = {f"x-pd-{role}": slot for role, slot in self.route.items()}
        return {"x-request-id": self.client or self.exchange, **receipt}

    @property
    def metadata(self) -> dict[str, str]:
        return {"ex": self.exchange, "client_id": self.client or self.exchange}

    def marked(self, reply: ImmediateReply) -> ImmediateReply:
        """With the metadata by which the access log knows it."""
        return msgspec.structs.replace(reply, metadata=self.metadata | self.route | reply.metadata)

    def refusal(self, reason: Reason, detail: str = "", param: str | None = None) -> ImmediateReply:
        return self.marked(refusal(reason, detail=detail, param=param, echo=self.echo))

    def rejection(self, event: PrefillAnswered) -> ImmediateReply:
        """Prefill's own refusal of the request: its body byte for byte, and its headers."""
        reason = Reason.PREFILL_REJECTED
        return self.marked(
            ImmediateReply(
                status=event.status,
                body=event.body or b"",
                headers={**event.headers, "x-pd-error": reason, **self.echo},
                metadata={"reply": reason},
            )
        )
