"""The paths that the sidecar answers itself: readiness and the union of the models."""

import msgspec

from sidecar.exchange.reasons import OWN_REPLY, Reason, refusal
from sidecar.exchange.situation import Situation
from sidecar.routing.model_card import ModelCard
from sidecar.wire.ext_proc import ImmediateReply
from sidecar.wire.paths import Own


def own_answer(path: Own, situation: Situation, echo: dict[str, str]) -> ImmediateReply | None:
    """The answer about ourselves; None: the path is no such question."""
    if path is Own.HEALTH:
        return _health(situation, echo)
    if path is Own.MODELS:
        return _models(situation, echo)
    return None


def _health(situation: Situation, echo: dict[str, str]) -> ImmediateReply:
    """200 with an empty body as vLLM's own, 503 while the pool cannot serve."""
    if situation.is_ready:
        return ImmediateReply(status=200, body=b"", headers=echo, metadata={"reply": OWN_REPLY})
    reply = refusal(why_not_ready(situation), echo=echo)
    return msgspec.structs.replace(reply, metadata={"reply": OWN_REPLY})


def why_not_ready(situation: Situation) -> Reason:
    if situation.is_draining:
        return Reason.DRAINING
    return Reason.NO_DECODE_INSTANCE if situation.has_prefill else Reason.NO_PREFILL_INSTANCE


def _models(situation: Situation, echo: dict[str, str]) -> ImmediateReply:
    data = b",".join(_entry(card) for card in situation.cards)
    return ImmediateReply(
        status=200,
        body=b'{"object":"list","data":[' + data + b"]}",
        headers={"content-type": "application/json", **echo},
        metadata={"reply": OWN_REPLY},
    )


def _entry(card: ModelCard) -> bytes:
    """What an engine said of it, with the time that it was first seen."""
    said = card.said.encode() or msgspec.json.encode(
        {"id": card.name, "object": "model", "owned_by": "vllm"}
    )
    return said[:-1] + b',"created":%d}' % (card.created or 0)
