"""The two legs of an exchange asked of the engines themselves, without a router: as they must be
or with their KV parameters changed."""

import uuid
from typing import Any

from tests.engines.fleet import Fleet
from tests.engines.rows import answers_to
from tests.engines.vllm_engine import MODEL, RANKS
from tests.requests.answer import Answer
from tests.requests.feature import CHAT, COMPLETIONS, MESSAGES, RESPONSES

Params = dict[str, Any]

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
