"""Scenarios of one exchange as text: an event a line, `----`, the effects that it has, the phase.

A file is a list of blocks with empty lines between them; lines that begin with `#` are comments and
stay. The machine alone is run: `place` and `confirm` are effects, and what is picked is the next
event. Times are seconds; `ID` is the exchange's id.
"""

import json
import shlex
from collections.abc import Iterator

from sidecar.exchange.body_budget import BodyBudget
from sidecar.exchange.effects import (
    ClosePrefill,
    Confirm,
    Effect,
    EndTransfer,
    FailTransfer,
    Note,
    Place,
    Send,
    StartPrefill,
)
from sidecar.exchange.events import Broke, ClientLeft, Event, PrefillAnswered, PrefillFailed
from sidecar.exchange.machine import Exchange
from sidecar.exchange.phase import IllegalEvent
from sidecar.exchange.reasons import Reason
from sidecar.exchange.records import Moved, Placed, PrefillEnded, Record, Refused, Replied
from sidecar.exchange.situation import Limits
from sidecar.routing.instance import TransferMode
from sidecar.routing.slots import Demand, NoPlacement, Placement, Slot, Target
from sidecar.wire.ext_proc import (
    BodyReply,
    HeadersReply,
    ImmediateReply,
    PassReply,
    Reply,
    RequestBody,
    ResponseHeaders,
)
from tests.exchange.exchange_driver import ID, KV, READY, decode, headers, prefill

RULE = "----"
ANSWERS = {
    "kv": PrefillAnswered(status=200, body=KV, seconds=0.5),
    "no-kv": PrefillAnswered(status=200, body=b'{"kv_transfer_params":null}', seconds=0.5),
    "late-body": PrefillAnswered(status=200, body=None, seconds=0.5),
    "400": PrefillAnswered(status=400, body=b'{"error":{"code":400}}', seconds=0.1),
    "500": PrefillAnswered(status=500, body=b"oops", seconds=0.1),
    "503": PrefillAnswered(status=503, body=b'{"error":"paused"}', seconds=0.1),
    "refused": PrefillFailed(reason=Reason.PREFILL_REFUSED, seconds=0.1),
    "reset": PrefillFailed(reason=Reason.PREFILL_RESET, seconds=0.1),
    "timeout": PrefillFailed(reason=Reason.PREFILL_TIMEOUT, seconds=9.0),
}


def replay(text: str) -> str:
    """The scenario with the effects that it has now."""
    exchange, now = Exchange(ID, 0, READY, Limits(prefill_timeout_s=10), BodyBudget(1 << 20)), 0.0
    blocks = []
    for block in text.strip().split("\n\n"):
        lines = block.split(f"\n{RULE}")[0].splitlines()
        shown: list[str] = []
        for line in lines:
            if line.startswith("#"):
                continue
            if line.startswith("wait "):
                now += float(line.removeprefix("wait "))
                continue
            shown += _step(exchange, read(line), now)
        is_comment = all(line.startswith("#") for line in lines)
        blocks.append("\n".join(lines if is_comment else [*lines, RULE, *shown]))
    return "\n\n".join(blocks) + "\n"


def _step(exchange: Exchange, event: Event, now: float) -> list[str]:
    try:
        effects = exchange.handle(event, now)
    except IllegalEvent as error:
        return [f"illegal: {error}"]
    return [*(line for effect in effects for line in show(effect)), f"-> {exchange.phase}"]


# --- events


def read(line: str) -> Event:
    """One event; KeyError or ValueError for a line that is none."""
    word, _, rest = line.partition(" ")
    if word == "headers":
        method, path, *more = rest.split()
        named = dict(part.split("=", 1) for part in more if "=" in part)
        return headers(path, is_last="last" in more, method=method, **named)
    if word == "body":
        return RequestBody(rest.encode())
    if word == "picked":
        return _placement(rest)
    if word == "nothing":
        return NoPlacement(rest)
    if word == "prefill":
        return ANSWERS[rest]
    if word == "decode":
        status, _, reason = rest.partition(" ")
        return ResponseHeaders(int(status), reason)
    if line.startswith("client left"):
        late = line.removeprefix("client left").removeprefix(" as prefill said ")
        return ClientLeft(prefill=ANSWERS[late] if late else None)
    if line == "broke":
        return Broke()
    raise ValueError(f"not an event: {line}")


def _placement(text: str) -> Placement:
    mode, *names = shlex.split(text)
    targets: dict[str, Target] = {}
    for name in names:
        role = "spare" if name.startswith("spare=") else name[0]
        ordinal, rank = name.removeprefix("spare=")[1:].split("#")
        make = prefill if role == "p" else decode
        targets[role] = make(int(ordinal), int(rank), mode=TransferMode(mode))
    return Placement(targets.get("p"), targets.get("d"), TransferMode(mode), targets.get("spare"))


# --- effects


def show(effect: Effect) -> Iterator[str]:
    match effect:
        case Send():
            yield f"send {_reply(effect.reply)}"
        case Place():
            yield f"place {_demand(effect.demand)}"
        case Confirm():
            yield f"confirm {_demand(effect.demand)}"
        case StartPrefill():
            body = json.loads(effect.body)
            transfer = body["kv_transfer_params"]["transfer_id"]
            wait = ", decode waits for it" if effect.transfer else ""
            yield f"start prefill {effect.url} {_id(transfer)} within {effect.timeout_s:g} s{wait}"
        case ClosePrefill():
            yield "close prefill"
        case EndTransfer():
            how = "answered" if effect.is_answered else "not wanted"
            yield f"end transfer {_id(effect.transfer_id)}: {how}"
        case FailTransfer():
            certainly = " for certain" if effect.is_certain else ""
            yield f"fail transfer {_id(effect.transfer_id)}{certainly}"
        case Note():
            yield f"note {_record(effect.record)}"


def _id(text: str) -> str:
    return text.replace(ID, "ID")


def _reply(reply: Reply) -> str:
    match reply:
        case HeadersReply(wants_response_headers=True):
            return "headers: go on, and ask for the answer's"
        case HeadersReply():
            return f"headers: to {_to(reply.set_headers)}"
        case BodyReply():
            params = json.loads(reply.body).get("kv_transfer_params")
            kv = _id(params["transfer_id"]) if params else "no transfer"
            return f"body: to {_to(reply.set_headers)}, {kv}"
        case PassReply():
            return "pass"
        case ImmediateReply():
            return f"{reply.status} {reply.headers.get('x-pd-error', 'own answer')}"


def _to(given: dict[str, str]) -> str:
    retry = given.get("x-envoy-retry-on")
    rank = given.get("x-data-parallel-rank")
    words = [f"{given['x-gateway-destination-endpoint']}{given[':path']}"]
    words += [f"rank {rank}"] if rank else []
    words += [f"retry on {retry}"] if retry else []
    return " ".join(words)


def _demand(demand: Demand) -> str:
    if demand.is_model_free:
        return "any one"
    tried = sorted(_slot(slot) for slot in demand.excluded)
    words = ["one alone" if demand.is_aggregated else "a pair"]
    words += [f"but not {' '.join(tried)}"] if tried else []
    return " ".join(words)


def _slot(slot: Slot | None) -> str:
    return "none" if slot is None else f"{slot.address.removesuffix(':8000')}#{slot.dp_rank}"


def _record(record: Record) -> str:
    match record:
        case Placed():
            mode = record.mode or "alone"
            slots = [_slot(s) for s in (record.prefill, record.decode) if s is not None]
            return f"placed {mode} {' '.join(slots)}"
        case PrefillEnded():
            how = record.reason or ("closed" if record.seconds is None else "good")
            return f"prefill ended: {how}"
        case Moved():
            return f"moved to {_slot(record.decode)}"
        case Refused():
            return f"refused: {record.reason}"
        case Replied():
            return f"replied{_how(record)}"
    raise ValueError(f"not a record of an exchange: {record}")


def _how(record: Replied) -> str:
    words = ["handed over"] if record.is_handed_over else []
    words += [str(record.reason)] if record.reason else []
    words += [f"client left in {record.phase}"] if record.phase else []
    words += ["prefill runs on"] if record.is_prefill_running else []
    words += [f"spare {_slot(record.spare.slot)}"] if record.spare else []
    return ": " + ", ".join(words) if words else ""
