"""The paths that the sidecar answers itself: readiness and the union of the models."""

import msgspec

from sidecar.exchange.reasons import OWN_REPLY, Reason, refusal
from sidecar.exchange.situation import Situation
from sidecar.wire.ext_proc import ImmediateReply


def own_answer(path: str, situation: Situation, echo: dict[str, str]) -> ImmediateReply | None:
    """The answer of a path that no instance is asked for; None for every other path."""
    name = path.partition("?")[0]
    if name in ("/health", "/ping"):
        return _health(situation, echo)
    if name == "/v1/models":
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
    data = [{"id": name, "object": "model", "owned_by": "vllm"} for name in situation.models]
    return ImmediateReply(
        status=200,
        body=msgspec.json.encode({"object": "list", "data": data}),
        headers={"content-type": "application/json", **echo},
        metadata={"reply": OWN_REPLY},
    )
