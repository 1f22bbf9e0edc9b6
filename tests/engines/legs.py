"""The two legs of an exchange asked of the engines themselves, without a router: as they must be
or with their KV parameters changed."""

import json
import urllib.error
import urllib.request
import uuid
from dataclasses import dataclass
from typing import Any

from tests.engines.fleet import Fleet
from tests.engines.rows import answers_to
from tests.engines.vllm_engine import MODEL, RANKS, VllmEngine
from tests.requests.answer import Answer
from tests.requests.feature import CHAT, COMPLETIONS, MESSAGES, RESPONSES

Params = dict[str, Any]
PATIENCE_S = {True: 8.0, False: 3.0}
"""of a client, by whether the engine is real: longer than it needs, shorter than it holds blocks"""

_ASKED: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": "A river runs from the mountains to the sea"},
    CHAT: {"messages": [{"role": "user", "content": "Tell me about rivers"}]},
    MESSAGES: {"messages": [{"role": "user", "content": "Tell me about rivers"}]},
    RESPONSES: {"input": "Tell me about rivers"},
}
PATHS = tuple(_ASKED)


def prefill_body(fleet: Fleet, path: str) -> dict[str, Any]:
    """One token, which ends the leg by length where the API lets it."""
    body = {"model": MODEL, "temperature": 0} | _ASKED[path]
    body["max_output_tokens" if path == RESPONSES else "max_tokens"] = 1
    if path != MESSAGES:
        body["ignore_eos"] = True
    return body | {"kv_transfer_params": prefill_params(fleet)}


def prefill_params(fleet: Fleet) -> Params:
    """As docs/protocol.md has them for the fleet's wiring."""
    params: Params = {"do_remote_decode": True, "do_remote_prefill": False}
    if fleet.kind.connector == "nixl":
        names = ("remote_engine_id", "remote_block_ids", "remote_host", "remote_port")
        return params | dict.fromkeys(names)
    params |= {"transfer_id": uuid.uuid4().hex, "remote_engine_id": None, "remote_block_ids": None}
    if fleet.kind.mode == "WRITE":
        params |= address(fleet, fleet.decode) | {"remote_dp_size": RANKS, "remote_tp_size": 1}
    return params


def address(fleet: Fleet, engine: Any) -> Params:
    """Where MoRI-IO finds an engine."""
    parts = dict(part.split(":") for part in fleet.entry(engine)["zmq_address"].split(","))
    return {
        "remote_host": parts["host"],
        "remote_handshake_port": int(parts["handshake"]),
        "remote_notify_port": int(parts["notify"]),
    }


def prefill_legs(fleet: Fleet) -> dict[str, Answer]:
    """One on each API, by path. What they hand over nobody fetches."""
    requests = {path: (path, prefill_body(fleet, path)) for path in PATHS}
    return answers_to(fleet.prefill.url, requests)


@dataclass(frozen=True)
class Leg:
    """What an engine made of one."""

    status: int
    """0: nothing came in time, or the connection broke"""
    text: str
    params: Params


def send(engine: Any, body: dict[str, Any], params: Params | None, rank: int) -> Leg:
    """A completion, whole, at one rank; the client leaves when its patience ends."""
    asked = body if params is None else body | {"kv_transfer_params": params}
    request = urllib.request.Request(
        engine.url + COMPLETIONS,
        json.dumps(asked).encode(),
        {"content-type": "application/json", "x-data-parallel-rank": str(rank)},
    )
    try:
        with urllib.request.urlopen(
            request, timeout=PATIENCE_S[isinstance(engine, VllmEngine)]
        ) as answer:
            said = json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return Leg(error.code, error.read().decode(errors="replace"), {})
    except OSError:
        return Leg(0, "", {})
    return Leg(200, said["choices"][0]["text"], said.get("kv_transfer_params") or {})


def decode_params(fleet: Fleet, own: Params, handed_over: Params, rank: int) -> Params:
    """Of what prefill handed over; `own` are those of its leg."""
    if fleet.kind.connector == "nixl":
        return handed_over
    if fleet.kind.mode == "READ":
        return handed_over | {"remote_tp_size": 1}
    told = {"do_remote_prefill": True, "do_remote_decode": False, "is_request_leader": True}
    told |= {"transfer_id": own["transfer_id"], "remote_engine_id": None, "remote_block_ids": None}
    told |= {"remote_dp_size": RANKS, "remote_tp_size": 1, "remote_dp_rank": rank}
    return told | address(fleet, fleet.prefill)
